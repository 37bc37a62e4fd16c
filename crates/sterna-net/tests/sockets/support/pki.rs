//! Certificates for tests, and TLS clients that trust them.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName,
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sterna_net::{Certificates, Identity, TlsConfig};

use super::PATIENCE;

/// An authority that issues certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key.
pub(crate) struct Issued {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    pub(crate) fn issue(&self, name: &str, serial: u64) -> Issued {
        self.issue_until(name, serial, 4096)
    }

    /// A certificate whose time is over when a year begins.
    pub(crate) fn issue_until(&self, name: &str, serial: u64, year: i32) -> Issued {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.distinguished_name.push(DnType::CommonName, name);
        let organization = "Devices of a plant in the north";
        (params.distinguished_name).push(DnType::OrganizationName, organization);
        params.not_after = date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued {
            der: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        }
    }

    pub(crate) fn revoke(&self, serial: u64) -> CertificateRevocationListDer<'static> {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(serial),
                revocation_time: date_time_ymd(2024, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().der().clone()
    }

    pub(crate) fn certificates(&self, name: &str) -> Arc<Certificates> {
        Certificates::new(vec![self.issue(name, 1).identity()]).unwrap()
    }

    pub(crate) fn tls_config(&self, alpn: &[&[u8]]) -> TlsConfig {
        TlsConfig::new(self.certificates("localhost"), alpn)
    }

    pub(crate) fn client(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        identity: Option<Issued>,
        alpn: &[&[u8]],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            Some(issued) => builder
                .with_client_auth_cert(vec![issued.der], issued.key)
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }
}

impl Issued {
    pub(crate) fn identity(self) -> Identity {
        Identity {
            chain: vec![self.der],
            key: self.key,
        }
    }
}

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Connects; the handshake happens with the first use.
pub(crate) fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> TlsStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    StreamOwned::new(connection, socket)
}
