//! Tokens that another program has signed, and what is wrong with others. `vectors.json` was made with
//! the library `cryptography` of Python.

use super::*;
use crate::config::Jwt;

const NOW_MS: u64 = 1_700_000_000_000;

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

fn token(algorithm: &str) -> String {
    let vectors = vectors();
    vectors["tokens"][algorithm].as_str().unwrap().to_owned()
}

/// An issuer whose keys are in a file of this text.
fn issuer(text: &str, change: impl FnOnce(&mut Jwt)) -> Result<Issuer, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    std::fs::write(&path, text).unwrap();
    let mut config = Jwt {
        key_files: vec![path],
        algorithms: vec![
            JwtAlgorithm::Es256,
            JwtAlgorithm::EdDsa,
            JwtAlgorithm::Rs256,
            JwtAlgorithm::Hs256,
        ],
        issuer: Some("https://issuer.example".to_owned()),
        audiences: vec!["sterna".to_owned()],
        ..Jwt::default()
    };
    change(&mut config);
    Issuer::load(&config)
}

fn jwks() -> String {
    vectors()["jwks"].to_string()
}

#[test]
fn tokens_of_another_program_are_accepted_with_keys_of_both_forms() {
    let pem = vectors()["pem"].as_str().unwrap().to_owned();
    let by_jwks = issuer(&jwks(), |_| {}).unwrap();
    let by_pem = issuer(&pem, |jwt| {
        jwt.algorithms.retain(|one| *one != JwtAlgorithm::Hs256);
    })
    .unwrap();
    for algorithm in ["RS256", "ES256", "EdDSA", "HS256"] {
        let token = token(algorithm);
        let identity = by_jwks.identify(token.as_bytes(), NOW_MS).unwrap();
        assert_eq!(identity.user(), Some("ann"), "{algorithm}");
        assert_eq!(identity.until_ms(), Some(1_800_000_030_000));
        let grant = identity.grant().unwrap();
        let found = by_pem.identify(token.as_bytes(), NOW_MS);
        if algorithm == "HS256" {
            assert_eq!(found, Err(Fault::Algorithm));
            assert!(by_pem.stands_by(grant).is_err(), "the key is not there");
        } else {
            let grant = found.unwrap();
            let grant = grant.grant().unwrap();
            assert!(by_pem.stands_by(grant).is_ok());
            let strict = issuer(&pem, |jwt| jwt.algorithms = vec![JwtAlgorithm::Rs256]).unwrap();
            assert!(strict.stands_by(grant).is_err(), "the terms are others");
        }
    }
}

#[test]
fn a_changed_byte_is_noticed() {
    let issuer = issuer(&jwks(), |_| {}).unwrap();
    for algorithm in ["RS256", "ES256", "EdDSA", "HS256"] {
        let token = token(algorithm);
        let parts: Vec<&str> = token.split('.').collect();
        for at in 0..3 {
            for index in [0, parts[at].len() / 2] {
                let mut part = parts[at].as_bytes().to_vec();
                part[index] = if part[index] == b'A' { b'B' } else { b'A' };
                let part = String::from_utf8(part).unwrap();
                let mut changed = parts.clone();
                changed[at] = &part;
                let found = issuer.identify(changed.join(".").as_bytes(), NOW_MS);
                assert!(found.is_err(), "{algorithm} part {at}");
            }
        }
    }
}

#[test]
fn claims_decide_by_the_settings() {
    let token = token("EdDSA");
    let user_at = |now_ms: u64, change: fn(&mut Jwt)| {
        let issuer = issuer(&jwks(), change).unwrap();
        let identity = issuer.identify(token.as_bytes(), now_ms)?;
        Ok(identity.user().unwrap().to_owned())
    };
    let same: fn(&mut Jwt) = |_| {};
    assert_eq!(user_at(NOW_MS, |jwt| jwt.issuer = None), Err(Fault::Issuer));
    let other: fn(&mut Jwt) = |jwt| jwt.audiences = vec!["another".to_owned()];
    assert_eq!(user_at(NOW_MS, other), Err(Fault::Audience));
    assert_eq!(user_at(1_800_000_030_000, same), Err(Fault::Expired));
    assert_eq!(user_at(1_800_000_029_999, same).unwrap(), "ann");
    assert_eq!(user_at(1_599_999_969_999, same), Err(Fault::Early));
    assert_eq!(user_at(1_599_999_970_000, same).unwrap(), "ann");
    let exact: fn(&mut Jwt) = |jwt| jwt.clock_skew_s = 0;
    assert_eq!(user_at(1_800_000_000_000, exact), Err(Fault::Expired));
    let pointer: fn(&mut Jwt) = |jwt| jwt.user_claim = "/realm/name".to_owned();
    assert_eq!(user_at(NOW_MS, pointer).unwrap(), "bob");
    let missing: fn(&mut Jwt) = |jwt| jwt.user_claim = "name".to_owned();
    assert_eq!(user_at(NOW_MS, missing), Err(Fault::User));
    let short: fn(&mut Jwt) = |jwt| jwt.maximum_token_bytes = 100;
    assert_eq!(user_at(NOW_MS, short), Err(Fault::Form));
    let bound: fn(&mut Jwt) = |jwt| jwt.client_ids_claim = Some("aud".to_owned());
    assert_eq!(user_at(NOW_MS, bound).unwrap(), "ann");
    let unbound: fn(&mut Jwt) = |jwt| jwt.client_ids_claim = Some("devices".to_owned());
    assert_eq!(user_at(NOW_MS, unbound), Err(Fault::Claims));
    let issuer = issuer(&jwks(), bound).unwrap();
    let identity = issuer.identify(token.as_bytes(), NOW_MS).unwrap();
    let grant = identity.grant().unwrap();
    assert!(grant.gives_client_id(Some("ann"), "sterna"));
    assert!(!grant.gives_client_id(Some("ann"), "ann"));
}

#[test]
fn files_without_good_keys_are_refused() {
    let short = r#"{"kty":"oct","k":"c2hvcnQ"}"#;
    let many = format!(
        "[{}]",
        [r#"{"kty":"oct","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}"#; 5].join(",")
    );
    let many = format!(r#"{{"keys":{many}}}"#);
    for (text, named) in [
        ("", "neither a JWK set"),
        ("{", "EOF"),
        (r#"{"keys":7}"#, "not a list"),
        (r#"{"keys":[7]}"#, "key 1: not an object"),
        (r#"{"keys":[]}"#, "no key for any"),
        (r#"{"kty":"OKP","crv":"Ed25519"}"#, "`x` is missing"),
        (r#"{"kty":"OKP","crv":"Ed25519","x":"AA"}"#, "32 bytes"),
        (r#"{"kty":"RSA","n":"AQAB","e":"AQAB"}"#, "2048 bits"),
        (short, "32 bytes"),
        (&many, "without a `kid`"),
        (
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
            "not a public key",
        ),
    ] {
        let why = issuer(text, |_| {}).unwrap_err();
        assert!(why.contains(named), "{text}: {why}");
    }
    let why = issuer(&jwks(), |jwt| jwt.maximum_keys = 3).unwrap_err();
    assert!(why.contains("maximum_keys (3)"), "{why}");
}

/// A bad key in what the issuer publishes keeps neither good ones out nor withdrawn ones in.
#[test]
fn a_bad_key_of_a_published_set_is_left_out_and_an_absent_one_withdrawn() {
    let set = |keys: &[Value]| serde_json::json!({ "keys": keys }).to_string();
    let all = vectors()["jwks"]["keys"].as_array().unwrap().clone();
    let of = |kty: &str| all.iter().find(|key| key["kty"] == kty).unwrap().clone();
    let mut weak = of("RSA");
    weak["kid"] = "weak".into();
    weak["n"] = URL_SAFE_NO_PAD.encode([0xff; 128]).into();
    let mut cut = of("EC");
    cut["x"] = "AAAA".into();
    let mut strange = of("EC");
    strange["crv"] = "secp256k1".into();
    let bad = [
        weak,
        cut,
        strange,
        "no object".into(),
        serde_json::json!({}),
    ];
    let own = issuer(&set(&[of("oct")]), |jwt| jwt.maximum_keys = 3).unwrap();
    let knows = |issuer: &Issuer, algorithm: &str| {
        issuer.identify(token(algorithm).as_bytes(), NOW_MS).is_ok()
    };
    let stolen = own.with_published(&set(&[of("RSA"), of("EC")])).unwrap();
    assert!(knows(&stolen, "RS256") && knows(&stolen, "ES256"));
    // The RSA key was stolen: it is not in the set any more, and the set has faults.
    let mut keys = bad.to_vec();
    keys.insert(2, of("EC"));
    let next = stolen.with_published(&set(&keys)).unwrap();
    assert!(!knows(&next, "RS256") && knows(&next, "ES256") && knows(&next, "HS256"));
    assert_eq!(next.key_count(), 2);
    // Beyond the limit the last ones are left out.
    let many = stolen.with_published(&set(&[of("OKP"), of("EC"), of("RSA")]));
    let many = many.unwrap();
    assert!(knows(&many, "EdDSA") && knows(&many, "ES256") && !knows(&many, "RS256"));
    // A set without a good key withdraws all, and what is no set withdraws none.
    let none = stolen.with_published(&set(&bad)).unwrap();
    assert!(!knows(&none, "RS256") && !knows(&none, "ES256") && knows(&none, "HS256"));
    for text in ["", "[]", "{}", "<html>", "{\"keys\": 1}"] {
        assert!(stolen.with_published(text).is_err(), "{text}");
    }
}

#[test]
fn a_message_of_oauthbearer_has_one_token() {
    for (message, found) in [
        ("n,,\u{1}auth=Bearer abc\u{1}\u{1}", Some(("abc", ""))),
        (
            "n,a=ann,\u{1}host=h\u{1}port=1\u{1}auth=bearer abc\u{1}\u{1}",
            Some(("abc", "ann")),
        ),
        (
            "n,,\u{1}auth=Bearer abc\u{1}auth=Bearer def\u{1}\u{1}",
            None,
        ),
        ("n,,\u{1}auth=Basic abc\u{1}\u{1}", None),
        ("n,,\u{1}auth=Bearer abc\u{1}", None),
        ("n,a=x=2Cy,\u{1}auth=Bearer abc\u{1}\u{1}", None),
        ("y,,\u{1}auth=Bearer abc\u{1}\u{1}", None),
        ("p=tls-unique,,\u{1}auth=Bearer abc\u{1}\u{1}", None),
        ("n,,\u{1}\u{1}", None),
        ("", None),
    ] {
        assert_eq!(token_of_message(message.as_bytes()), found, "{message:?}");
    }
}
