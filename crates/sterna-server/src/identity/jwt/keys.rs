//! The keys that verify JSON web tokens: JWK sets (RFC 7517) and public keys in PEM.
//!
//! A key serves one algorithm, the one of its type. So a token cannot choose how a key is used. No public
//! key is ever the secret of an HMAC, and there is no key for `none`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{digest, hmac, signature};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Map, Value};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::config::JwtAlgorithm;

/// Shortest secret of HS256, in bytes (RFC 7518, section 3.2).
const MINIMUM_SECRET_BYTES: usize = 32;
/// Shortest modulus of RS256, in bytes (RFC 7518, section 3.3).
const MINIMUM_MODULUS_BYTES: usize = 256;
/// Keys without a name that may fit one token, so that a wrong token costs few checks.
const MAXIMUM_NAMELESS: usize = 4;
/// Dotted names of the types of public keys (RFC 3279, RFC 5480, RFC 8410).
const RSA: &str = "1.2.840.113549.1.1.1";
const EC: &str = "1.2.840.10045.2.1";
const P256: &str = "1.2.840.10045.3.1.7";
const ED25519: &str = "1.3.101.112";

/// The identifier of a key: a digest of its algorithm and its material.
pub(in crate::identity) type KeyId = [u8; 32];

/// A key of the issuer.
#[derive(Debug)]
pub(super) struct Key {
    /// The name that tokens call it by (`kid`); keys in PEM have none.
    pub(super) name: Option<String>,
    pub(super) algorithm: JwtAlgorithm,
    pub(super) id: KeyId,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Secret(hmac::Key),
    Rsa(signature::RsaPublicKeyComponents<Vec<u8>>),
    Curve(signature::UnparsedPublicKey<Vec<u8>>),
}

/// The keys in force, in the order of their files.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(Vec<Arc<Key>>);

impl Key {
    fn new(name: Option<String>, algorithm: JwtAlgorithm, parts: &[&[u8]]) -> Result<Self, String> {
        // DER writes a zero in front of a number; the key is the same one without it.
        let without_zeros = |part: &[u8]| -> Vec<u8> {
            let zeros = part.iter().take_while(|byte| **byte == 0).count();
            part[zeros..].to_vec()
        };
        let numbers: Vec<Vec<u8>> = match algorithm {
            JwtAlgorithm::Rs256 => parts.iter().map(|part| without_zeros(part)).collect(),
            _ => parts.iter().map(|part| part.to_vec()).collect(),
        };
        let parts: Vec<&[u8]> = numbers.iter().map(Vec::as_slice).collect();
        let material = match (algorithm, &parts[..]) {
            (JwtAlgorithm::Hs256, [secret]) => {
                if secret.len() < MINIMUM_SECRET_BYTES {
                    return Err("a secret of HS256 has at least 32 bytes".to_owned());
                }
                Material::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret))
            }
            (JwtAlgorithm::Rs256, [modulus, exponent]) => {
                let (n, e) = (modulus.to_vec(), exponent.to_vec());
                if n.len() < MINIMUM_MODULUS_BYTES || e.is_empty() {
                    return Err("an RSA key has at least 2048 bits".to_owned());
                }
                Material::Rsa(signature::RsaPublicKeyComponents { n, e })
            }
            (JwtAlgorithm::Es256, [x, y]) if x.len() == 32 && y.len() == 32 => {
                let point = [&[4], *x, *y].concat();
                let algorithm = &signature::ECDSA_P256_SHA256_FIXED;
                Material::Curve(signature::UnparsedPublicKey::new(algorithm, point))
            }
            (JwtAlgorithm::EdDsa, [x]) if x.len() == 32 => {
                let key = signature::UnparsedPublicKey::new(&signature::ED25519, x.to_vec());
                Material::Curve(key)
            }
            _ => return Err("a coordinate does not have 32 bytes".to_owned()),
        };
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(algorithm.name().as_bytes());
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut id = KeyId::default();
        id.copy_from_slice(context.finish().as_ref());
        Ok(Self {
            name,
            algorithm,
            id,
            material,
        })
    }

    /// Reads a JWK; `None` for one that is not meant for signatures or not of a type that is served.
    fn of_jwk(jwk: &Map<String, Value>) -> Result<Option<Self>, String> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| -> Result<Vec<u8>, String> {
            let text = text(name).ok_or_else(|| format!("`{name}` is missing"))?;
            let decoded = URL_SAFE_NO_PAD.decode(text);
            decoded.map_err(|_| format!("`{name}` is not base64url"))
        };
        let is_for_others = text("use").is_some_and(|value| value != "sig");
        let operations = jwk.get("key_ops").and_then(Value::as_array);
        let verifies =
            operations.is_none_or(|operations| operations.iter().any(|one| one == "verify"));
        let (algorithm, members): (_, &[&str]) = match (text("kty"), text("crv")) {
            _ if is_for_others || !verifies => return Ok(None),
            (Some("oct"), None) => (JwtAlgorithm::Hs256, &["k"]),
            (Some("RSA"), None) => (JwtAlgorithm::Rs256, &["n", "e"]),
            (Some("EC"), Some("P-256")) => (JwtAlgorithm::Es256, &["x", "y"]),
            (Some("OKP"), Some("Ed25519")) => (JwtAlgorithm::EdDsa, &["x"]),
            _ => return Ok(None),
        };
        if text("alg").is_some_and(|alg| alg != algorithm.name()) {
            return Ok(None);
        }
        let parts = members.iter().map(|name| bytes(name));
        let parts: Vec<Vec<u8>> = parts.collect::<Result<_, _>>()?;
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let name = text("kid").map(str::to_owned);
        Self::new(name, algorithm, &parts).map(Some)
    }

    /// Reads a public key in DER.
    fn of_der(der: &[u8]) -> Result<Self, String> {
        let (_, info) =
            SubjectPublicKeyInfo::from_der(der).map_err(|_| "not a public key".to_owned())?;
        let bits = &info.subject_public_key.data;
        let curve = || {
            let parameters = info.algorithm.parameters.as_ref()?;
            Some(parameters.as_oid().ok()?.to_id_string())
        };
        match info.algorithm.algorithm.to_id_string().as_str() {
            RSA => match info.parsed() {
                Ok(PublicKey::RSA(key)) => {
                    Self::new(None, JwtAlgorithm::Rs256, &[key.modulus, key.exponent])
                }
                _ => Err("not an RSA key".to_owned()),
            },
            EC if curve().as_deref() == Some(P256) && bits.len() == 65 && bits[0] == 4 => {
                Self::new(None, JwtAlgorithm::Es256, &[&bits[1..33], &bits[33..]])
            }
            ED25519 => Self::new(None, JwtAlgorithm::EdDsa, &[bits]),
            _ => Err("a public key is of RSA, P-256 or Ed25519".to_owned()),
        }
    }

    /// Whether a signature is this key's.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Secret(key) => hmac::verify(key, message, signature).is_ok(),
            Material::Rsa(key) => {
                let algorithm = &signature::RSA_PKCS1_2048_8192_SHA256;
                key.verify(algorithm, message, signature).is_ok()
            }
            Material::Curve(key) => key.verify(message, signature).is_ok(),
        }
    }
}

impl Keys {
    /// Reads files, each a JWK set, a JWK, or public keys in PEM.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub(super) fn load(
        paths: &[impl AsRef<Path>],
        algorithms: &[JwtAlgorithm],
        most: u32,
    ) -> Result<Self, String> {
        let mut all = Vec::new();
        for path in paths {
            let path = path.as_ref();
            let fault = |why: String| format!("{}: {why}", path.display());
            let text = fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
            let mut keys = parse(&text).map_err(fault)?;
            keys.retain(|key| algorithms.contains(&key.algorithm));
            if keys.is_empty() {
                let why = "no key for any of authentication.jwt.algorithms";
                return Err(fault(why.to_owned()));
            }
            all.extend(keys.into_iter().map(Arc::new));
        }
        Self::checked(all, algorithms, most)
    }

    /// These keys, and those of a JWK set that was published. Secrets are not published, so none is taken. The second
    /// value says of each key that is left out why; the others count all the same, as there may be one among those that
    /// are not in the set any more whose secret was stolen (RFC 7517, section 5).
    ///
    /// # Errors
    /// A sentence that names the fault of what is no set.
    pub(super) fn with_published(
        &self,
        text: &str,
        algorithms: &[JwtAlgorithm],
        most: u32,
    ) -> Result<(Self, Vec<String>), String> {
        let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let jwks = document.get("keys").and_then(Value::as_array);
        let jwks = jwks.ok_or("there is no list `keys`")?;
        let (mut all, mut left_out) = (self.clone(), Vec::new());
        for (at, jwk) in jwks.iter().enumerate() {
            let key = match key_at(at, jwk) {
                Ok(Some(key)) => key,
                Ok(None) => continue,
                Err(why) => {
                    left_out.push(why);
                    continue;
                }
            };
            if key.algorithm == JwtAlgorithm::Hs256 || !algorithms.contains(&key.algorithm) {
                continue;
            }
            all.0.push(Arc::new(key));
            if let Err(why) = all.check(algorithms, most) {
                all.0.pop();
                left_out.push(format!("key {}: {why}", at + 1));
            }
        }
        Ok((all, left_out))
    }

    fn checked(all: Vec<Arc<Key>>, algorithms: &[JwtAlgorithm], most: u32) -> Result<Self, String> {
        let all = Self(all);
        all.check(algorithms, most).map(|()| all)
    }

    /// Whether there are not too many of them, and not too many that may fit one token.
    fn check(&self, algorithms: &[JwtAlgorithm], most: u32) -> Result<(), String> {
        let all = &self.0;
        if all.len() > most as usize {
            return Err(format!(
                "more keys than authentication.jwt.maximum_keys ({most})"
            ));
        }
        for &algorithm in algorithms {
            let alike = |name: Option<&String>| {
                let like =
                    |key: &&Arc<Key>| key.algorithm == algorithm && key.name.as_ref() == name;
                all.iter().filter(like).count()
            };
            if all
                .iter()
                .any(|key| alike(key.name.as_ref()) > MAXIMUM_NAMELESS)
            {
                return Err(format!(
                    "more than {MAXIMUM_NAMELESS} keys of {} without a `kid` of their own",
                    algorithm.name()
                ));
            }
        }
        Ok(())
    }

    /// The keys that a token may be signed by: those of the name, and those without one. A token that names
    /// no key may also be signed by the only key of its algorithm.
    pub(super) fn of<'a>(
        &'a self,
        algorithm: JwtAlgorithm,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Key>> {
        let of_algorithm = move |key: &&Arc<Key>| key.algorithm == algorithm;
        let is_only = self.0.iter().filter(of_algorithm).count() == 1;
        (self.0.iter().filter(of_algorithm)).filter(move |key| match (&key.name, name) {
            (None, _) => true,
            (Some(own), Some(name)) => own == name,
            (Some(_), None) => is_only,
        })
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a key is among them.
    pub(super) fn have(&self, id: &KeyId) -> bool {
        self.0.iter().any(|key| key.id == *id)
    }

    /// Whether they are the same as others, in any order. Names count: tokens call keys by them.
    pub(super) fn are_same(&self, other: &Self) -> bool {
        let has = |keys: &Self, key: &Key| {
            (keys.0.iter()).any(|one| one.id == key.id && one.name == key.name)
        };
        let all = |one: &Self, other: &Self| one.0.iter().all(|key| has(other, key));
        all(self, other) && all(other, self)
    }
}

/// Reads an entry of a JWK set, by its place; `None` for a key that is not for signatures.
fn key_at(at: usize, jwk: &Value) -> Result<Option<Key>, String> {
    let jwk = jwk.as_object().ok_or_else(|| "not an object".to_owned());
    jwk.and_then(Key::of_jwk)
        .map_err(|why| format!("key {}: {why}", at + 1))
}

fn parse(text: &str) -> Result<Vec<Key>, String> {
    if !text.trim_start().starts_with('{') {
        return parse_pem(text);
    }
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let single = std::slice::from_ref(&document);
    let jwks = match document.get("keys") {
        Some(Value::Array(keys)) => keys,
        Some(_) => return Err("`keys` is not a list".to_owned()),
        None => single,
    };
    let mut keys = Vec::new();
    for (at, jwk) in jwks.iter().enumerate() {
        keys.extend(key_at(at, jwk)?);
    }
    Ok(keys)
}

fn parse_pem(text: &str) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for item in SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes()) {
        let fault = |why: String| format!("key {}: {why}", keys.len() + 1);
        let der = item.map_err(|error| fault(error.to_string()))?;
        keys.push(Key::of_der(&der).map_err(fault)?);
    }
    if keys.is_empty() {
        return Err("neither a JWK set nor `BEGIN PUBLIC KEY`".to_owned());
    }
    Ok(keys)
}
