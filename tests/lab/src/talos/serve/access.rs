//! Roles, and what each method needs.

use rustls_pki_types::CertificateDer;
use tonic::Status;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::talos::version::Version;

pub(super) const MACHINE: &str = "machine.MachineService";
pub(super) const IMAGE: &str = "machine.ImageService";
const STATE: &str = "cosi.resource.State";

/// The refusal of a role.
pub(super) const NOT_AUTHORIZED: &str = "not authorized";

/// The least role of three that contain one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Reader,
    Operator,
    Admin,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The common name; talosctl's certificates have none.
    pub name: String,
    role: Option<Role>,
}

impl Caller {
    /// Roles are the organizations of the subject (talos.md 2.5). `None` when the certificate's extended key usage is
    /// not exactly clientAuth: real apids break the handshake then (talos.md 2.1).
    pub fn from_certificate(certificate: &CertificateDer<'static>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let usage = certificate.extended_key_usage().ok()??.value;
        let others = usage.any
            || usage.server_auth
            || usage.code_signing
            || usage.email_protection
            || usage.time_stamping
            || usage.ocsp_signing
            || !usage.other.is_empty();
        if !usage.client_auth || others {
            return None;
        }
        let role = certificate
            .subject()
            .iter_organization()
            .filter_map(|organization| match organization.as_str().ok()? {
                "os:admin" => Some(Role::Admin),
                "os:operator" => Some(Role::Operator),
                "os:reader" => Some(Role::Reader),
                _ => None,
            })
            .max();
        let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        Some(Self { name: name.unwrap_or_default().to_owned(), role })
    }

    pub fn may(&self, method: &Method) -> bool {
        self.role.is_some_and(|role| role >= method.needs)
    }

    pub fn is_admin(&self) -> bool {
        self.role == Some(Role::Admin)
    }
}

/// A method that the lab answers.
#[derive(Debug)]
pub(super) struct Method {
    pub service: &'static str,
    pub name: &'static str,
    pub needs: Role,
    /// It changes stored state.
    pub write: bool,
    /// One message comes back.
    pub unary: bool,
}

const fn method(service: &'static str, name: &'static str, needs: Role, write: bool, unary: bool) -> Method {
    Method { service, name, needs, write, unary }
}

/// SYS/services/machined.go:40-132, as far as the product goes.
static METHODS: [Method; 16] = [
    method(MACHINE, "Version", Role::Reader, false, true),
    method(MACHINE, "Read", Role::Admin, false, false),
    method(MACHINE, "ApplyConfiguration", Role::Admin, true, true),
    method(MACHINE, "Reboot", Role::Operator, true, true),
    method(MACHINE, "ServiceList", Role::Reader, false, true),
    method(MACHINE, "ImageList", Role::Reader, false, false),
    method(MACHINE, "ImagePull", Role::Operator, true, true),
    method(MACHINE, "EtcdMemberList", Role::Reader, false, true),
    method(MACHINE, "EtcdStatus", Role::Reader, false, true),
    method(MACHINE, "EtcdAlarmList", Role::Reader, false, true),
    method(IMAGE, "List", Role::Reader, false, false),
    method(IMAGE, "Pull", Role::Operator, true, false),
    method(IMAGE, "Remove", Role::Admin, true, true),
    method(STATE, "Get", Role::Reader, false, true),
    method(STATE, "List", Role::Reader, false, false),
    method(STATE, "Watch", Role::Reader, false, false),
];

impl Method {
    /// The method of a path.
    ///
    /// # Errors
    /// What a node answers that does not know it (read.jsonl).
    pub fn find(path: &str, version: &Version) -> Result<&'static Self, Status> {
        let (service, name) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        let mut of_service = METHODS
            .iter()
            .filter(|method| method.service == service && (service != IMAGE || version.has_image_service()))
            .peekable();
        if of_service.peek().is_none() {
            return Err(Status::unimplemented(format!("unknown service {service}")));
        }
        of_service
            .find(|method| method.name == name)
            .ok_or_else(|| Status::unimplemented(format!("unknown method {name} for service {service}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Ca;
    use rustls_pki_types::pem::PemObject as _;

    fn caller(pair: &crate::pki::Pair) -> Option<Caller> {
        Caller::from_certificate(&CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).unwrap())
    }

    #[test]
    fn roles_come_from_the_subject() {
        let ca = Ca::talos();
        let find = |path| Method::find(path, &"1.13.9".parse().unwrap());
        let (apply, reboot) =
            (find("/machine.MachineService/ApplyConfiguration"), find("/machine.MachineService/Reboot"));
        let (apply, reboot) = (apply.unwrap(), reboot.unwrap());
        let operator = caller(&ca.client("", &["os:reader", "os:operator"])).unwrap();
        assert!(operator.may(reboot) && !operator.may(apply) && !operator.is_admin());
        let admin = caller(&ca.client("ada", &["os:admin"])).unwrap();
        assert!(admin.may(apply) && admin.name == "ada" && operator.name.is_empty());
        assert!(!caller(&ca.client("", &["unheard-of"])).unwrap().may(reboot));
        assert!(caller(&ca.server(&["x".to_owned()])).is_none());
        let unknown = find("/machine.MachineService/NoSuchMethod").unwrap_err();
        assert_eq!(unknown.message(), "unknown method NoSuchMethod for service machine.MachineService");
        assert_eq!(find("/nope.Nope/Nope").unwrap_err().message(), "unknown service nope.Nope");
        let older = Method::find("/machine.ImageService/List", &"1.12.11".parse().unwrap()).unwrap_err();
        assert_eq!(older.message(), "unknown service machine.ImageService");
        for version in ["1.9.6", "1.13.9", "1.14.0-rc.1"] {
            Method::find("/machine.MachineService/ImagePull", &version.parse().unwrap()).unwrap();
        }
    }
}
