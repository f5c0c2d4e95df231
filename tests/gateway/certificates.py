"""An authority and its certificates, made by the program openssl."""

import pathlib
import subprocess

USAGES = "basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=IP:127.0.0.1\n"
KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.certificate, self.key = self.folder / "ca.pem", self.folder / "ca.key"
        self._openssl("req", "-x509", *KEY, "-days", "30", "-subj", "/CN=authority",
                      "-keyout", self.key, "-out", self.certificate)

    def issue(self, name, subject=None):
        """The files of a new certificate and its key. The default subject is CN=<name>,O=Example\\, Inc."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, usages = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        usages.write_text(USAGES)
        self._openssl("req", *KEY, "-utf8", "-subj", subject or f"/O=Example, Inc./CN={name}", "-keyout", key, "-out", request)
        self._openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                      "-CAcreateserial", "-days", "30", "-extfile", usages, "-out", certificate)
        return str(certificate), str(key)

    def _openssl(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
