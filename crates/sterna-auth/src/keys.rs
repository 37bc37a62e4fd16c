//! The functions of RFC 5802 section 3 over SHA-256: `Hi`, `HMAC`, `H` and the keys made from them.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

/// Bytes in a SHA-256 digest, and so in every key, proof and signature of SCRAM-SHA-256.
pub(crate) const KEY_BYTES: usize = 32;

/// A key, proof or signature.
pub(crate) type Key = [u8; KEY_BYTES];

/// `HMAC(key, parts…)`; the parts are hashed as if they stood in one piece.
pub(crate) fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    // HMAC takes keys of any length: longer than a block is hashed first, shorter is padded.
    let mut mac = match <Hmac<Sha256> as Mac>::new_from_slice(key) {
        Ok(mac) => mac,
        Err(never) => unreachable!("HMAC accepts keys of every length: {never}"),
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// `Hi(password, salt, iterations)`, which is PBKDF2 with one block of output.
pub(crate) fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    let mut out = [0; KEY_BYTES];
    // The only error is a key length that HMAC refuses, and HMAC refuses none.
    let result = pbkdf2::pbkdf2::<Hmac<Sha256>>(password, salt, iterations, &mut out);
    debug_assert!(result.is_ok(), "HMAC accepts keys of every length");
    out
}

/// `H(key)`.
pub(crate) fn digest(key: &[u8]) -> Key {
    Sha256::digest(key).into()
}

/// `ClientKey := HMAC(SaltedPassword, "Client Key")`.
pub(crate) fn client_key(salted_password: &Key) -> Key {
    hmac(salted_password, &[b"Client Key"])
}

/// `ServerKey := HMAC(SaltedPassword, "Server Key")`.
pub(crate) fn server_key(salted_password: &Key) -> Key {
    hmac(salted_password, &[b"Server Key"])
}

/// `a XOR b`.
pub(crate) fn xor(a: &Key, b: &Key) -> Key {
    std::array::from_fn(|at| a[at] ^ b[at])
}
