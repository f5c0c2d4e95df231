//! Authorities that sign certificates.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use crate::security::{Security, Tls};

/// An authority, which gives certificates to members.
pub(super) struct Authority(pub(super) CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(Authority::params(), key).unwrap())
    }

    /// One whose certificate this one has signed.
    pub(super) fn below(&self) -> Authority {
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::signed_by(Authority::params(), key, &self.0).unwrap())
    }

    fn params() -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        params
    }

    /// Authority, certificate and key as PEM, for this name and until this year.
    pub(super) fn pem(&self, name: &str, until: i32) -> [String; 3] {
        self.pem_for(name, until, &[])
    }

    /// The same, for these purposes alone.
    pub(super) fn pem_for(
        &self,
        name: &str,
        until: i32,
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> [String; 3] {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = purposes.to_vec();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        [self.0.pem(), certificate.pem(), key.serialize_pem()]
    }

    pub(super) fn tls(&self, name: &str) -> Security {
        let [authority, certificate, key] = self.pem(name, 2999);
        Tls::from_pem(authority, certificate, key).unwrap().into()
    }

    /// A certificate of this authority, for a node that accepts those of the other one, too.
    pub(super) fn both(&self, other: &Authority, name: &str) -> Security {
        let [own, certificate, key] = self.pem(name, 2999);
        Tls::from_pem(format!("{own}{}", other.0.pem()), certificate, key).unwrap().into()
    }
}
