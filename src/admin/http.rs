//! The subset of HTTP/1.1 that the endpoint supports: requests from bytes, and responses to bytes.
//!
//! A request is one line, some headers, and a body of a known length. Ambiguous requests (two lengths, a
//! transfer coding, two hosts) are refused.

use serde_json::{Value, json};

/// The longest head of a request: its first line and its headers.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 10;
/// The most headers.
pub(super) const HEADERS_MAX: usize = 64;
/// The longest body. It is more than a znode's data may have, so that data that is too long is refused
/// with a proper error.
pub(super) const BODY_BYTES_MAX: usize = 2 << 20;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
}

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) method: Method,
    /// The path as it was sent: see [`decoded`].
    pub(super) path: String,
    pub(super) query: String,
    pub(super) host: String,
    pub(super) origin: Option<String>,
    /// `Sec-Fetch-Site`: the site from which a browser's request comes.
    pub(super) site: Option<String>,
    pub(super) authorization: Option<String>,
    /// The length of its body.
    pub(super) body: usize,
    /// Whether the connection may have another request after this one.
    pub(super) keep: bool,
}

/// Reads the head of a request, and its length; `None` if it is not complete yet.
///
/// # Errors
/// The response to bytes that are not a request. The connection ends after it.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(RequestHead, usize)>, Response> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let too_long = || {
        Response::error(431, format!("the head of a request has at most {HEAD_BYTES_MAX} bytes"))
    };
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_BYTES_MAX => length,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) => return Err(too_long()),
        Err(httparse::Error::TooManyHeaders) => {
            let reason = format!("a request has at most {HEADERS_MAX} headers");
            return Err(Response::error(431, reason));
        }
        Err(error) => return Err(Response::error(400, format!("this is no request: {error}"))),
    };
    let bad = |reason: &str| Response::error(400, reason);
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        Some("PUT") => Method::Put,
        Some("DELETE") => Method::Delete,
        _ => {
            return Err(Response::not_allowed("only GET, HEAD, POST, PUT and DELETE are answered"));
        }
    };
    let target = request.path.unwrap_or_default();
    if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("the path begins with / and is ASCII; what is not is written as %XX"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let one = |name: &str| -> Result<Option<String>, Response> {
        let mut named =
            request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let (first, second) = (named.next(), named.next());
        if second.is_some() {
            return Err(bad(&format!("there are two headers {name}")));
        }
        let text = first.map(|header| std::str::from_utf8(header.value).map(str::trim));
        let text = text.transpose().map_err(|_| bad(&format!("the header {name} is not UTF-8")))?;
        Ok(text.map(str::to_owned))
    };
    if one("transfer-encoding")?.is_some() {
        return Err(Response::error(501, "send the body with its Content-Length"));
    }
    let body = match one("content-length")? {
        None => 0,
        Some(length) if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) => {
            // A number that overflows is too long, too.
            length.parse().unwrap_or(usize::MAX)
        }
        Some(_) => return Err(bad("the Content-Length is not a number")),
    };
    if body > BODY_BYTES_MAX {
        return Err(Response::error(413, format!("a body has at most {BODY_BYTES_MAX} bytes")));
    }
    let connection = one("connection")?.unwrap_or_default().to_ascii_lowercase();
    let has_option = |word: &str| connection.split(',').any(|part| part.trim() == word);
    let head = RequestHead {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        host: one("host")?.ok_or_else(|| bad("there is no header Host"))?,
        origin: one("origin")?,
        site: one("sec-fetch-site")?,
        authorization: one("authorization")?,
        body,
        keep: request.version == Some(1) && !has_option("close"),
    };
    Ok(Some((head, length)))
}

impl RequestHead {
    /// The value of a parameter of the query; empty if it is only named.
    pub(super) fn parameter(&self, name: &str) -> Result<Option<String>, Response> {
        let parts = self.query.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
        let mut named = parts.filter(|(of, _)| *of == name).map(|(_, value)| value);
        let (first, second) = (named.next(), named.next());
        if second.is_some() {
            return Err(Response::error(400, format!("the parameter {name} is given twice")));
        }
        first.map(decoded).transpose()
    }

    /// The value of a parameter as a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Response> {
        let wrong = |_| Response::error(400, format!("the parameter {name} is not a number"));
        self.parameter(name)?.map(|text| text.parse().map_err(wrong)).transpose()
    }
}

/// Decodes the `%XX` of a text.
pub(super) fn decoded(text: &str) -> Result<String, Response> {
    let wrong = || Response::error(400, "what follows a % is two hexadecimal digits of UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or_else(wrong)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(digits[0]).zip(digit(digits[1])).map(|(high, low)| high * 16 + low);
        bytes.push(value.and_then(|value| u8::try_from(value).ok()).ok_or_else(wrong)?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
    /// Further headers and their values.
    pub(super) headers: Vec<(&'static str, String)>,
}

impl Response {
    pub(super) fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response { status: 200, kind, body: body.into(), headers: Vec::new() }
    }

    pub(super) fn json(status: u16, value: &Value) -> Response {
        Response { status, ..Response::new("application/json", format!("{value:#}\n")) }
    }

    pub(super) fn error(status: u16, reason: impl Into<String>) -> Response {
        Response::json(status, &json!({ "error": reason.into() }))
    }

    /// The response to a request that is not allowed, whoever sends it.
    pub(super) fn not_allowed(reason: &str) -> Response {
        Response::error(405, reason).with("Allow", "GET, HEAD")
    }

    /// Adds a header.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Response {
        self.headers.push((name, value.into()));
        self
    }

    /// Encodes the response; for a `HEAD` request, only its head.
    pub(super) fn encode(&self, head_only: bool, keep: bool) -> Vec<u8> {
        let mut bytes = self.head(Some(self.body.len() as u64), keep);
        if !head_only {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }

    /// Encodes the head. Without a length, the body lasts until the connection ends.
    pub(super) fn head(&self, length: Option<u64>, keep: bool) -> Vec<u8> {
        let Response { status, kind, headers, .. } = self;
        let mut text = format!("HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\n", reason(*status));
        let mut add = |name: &str, value: &str| {
            text.push_str(&format!("{name}: {value}\r\n"));
        };
        if let Some(length) = length {
            add("Content-Length", &length.to_string());
        }
        add("Connection", if keep { "keep-alive" } else { "close" });
        add("Cache-Control", "no-store");
        add("X-Content-Type-Options", "nosniff");
        add("X-Frame-Options", "DENY");
        add("Referrer-Policy", "no-referrer");
        add("Cross-Origin-Resource-Policy", "same-origin");
        add("Cross-Origin-Opener-Policy", "same-origin");
        if !headers.iter().any(|(name, _)| *name == POLICY) {
            add(POLICY, "default-src 'none'; frame-ancestors 'none'");
        }
        for (name, value) in headers {
            add(name, value);
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

/// The header with the permissions of a page. If a response does not set it, the page may do
/// nothing.
pub(super) const POLICY: &str = "Content-Security-Policy";

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}
