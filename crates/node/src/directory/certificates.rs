//! The files by which this host and etcd know each other.

use causeway_directory::Tls;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Whether certificate and key can be this host's. The HTTP client takes for granted that they can,
/// and ends the process where they can't.
fn check_own(chain: &[Certificate<'_>], key: &[u8]) -> Result<(), String> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|why| why.to_string())?;
    let chain = chain.iter().map(|one| one.der().to_vec().into());
    let chain: Vec<CertificateDer<'static>> = chain.collect();
    let known = CertifiedKey::from_der(chain, key, &ring::default_provider());
    match known {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err("the key is not that of the certificate".to_owned())
        }
        Err(why) => Err(format!(
            "certificate and key cannot be used, which takes X.509 version 3: {why}"
        )),
    }
}

/// What HTTPS goes by.
///
/// # Errors
/// What is wrong with which file.
pub(super) fn tls_config(tls: &Tls) -> Result<TlsConfig, String> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|why| format!("{}: {why}", path.display()))
    };
    let certificates = |path: &std::path::Path| {
        let text = read(path)?;
        let found: Result<Vec<Certificate<'static>>, ureq::Error> = ureq::tls::parse_pem(&text)
            .filter_map(|item| match item {
                Ok(ureq::tls::PemItem::Certificate(one)) => Some(Ok(one)),
                Ok(_) => None,
                Err(why) => Some(Err(why)),
            })
            .collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => Err(format!("{}: no certificate", path.display())),
            Err(why) => Err(format!("{}: {why}", path.display())),
        }
    };
    // Only the certificates that are named: those of the web have no business here.
    let roots = tls
        .ca
        .as_deref()
        .map(certificates)
        .transpose()?
        .unwrap_or_default();
    let mut config = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&roots));
    if let Some((certificate, key)) = &tls.own {
        let chain = certificates(certificate)?;
        let text = read(key)?;
        let private = PrivateKey::from_pem(&text);
        let private = private.map_err(|why| format!("{}: {why}", key.display()))?;
        check_own(&chain, &text)
            .map_err(|why| format!("{} and {}: {why}", certificate.display(), key.display()))?;
        config = config.client_cert(Some(ClientCert::new_with_certs(&chain, private)));
    }
    Ok(config.build())
}
