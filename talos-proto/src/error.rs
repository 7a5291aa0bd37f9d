//! What can go wrong with a call, told apart by what somebody would do about it.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use tonic::{Code, ConnectError, Status};

/// A call that failed: which, of which node, through which endpoint, and why.
#[derive(Debug, thiserror::Error)]
#[error("{call} of {node} through {endpoint}")]
pub struct CallError {
    /// The method or resource, for instance `Version` or `ServicePIDs/cri`.
    pub call: String,
    /// The node that was meant.
    pub node: IpAddr,
    /// The endpoint that was asked last.
    pub endpoint: String,
    /// Why it failed.
    #[source]
    pub why: Why,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The endpoint could not be reached; nothing was sent.
    #[error("cannot connect: {problem}")]
    Connect {
        /// The innermost cause, for instance `Connection refused (os error 111)`.
        problem: String,
    },
    /// The endpoint was reached but TLS failed: wrong CA, refused client certificate, a name that does not match.
    #[error("TLS: {problem}")]
    Tls {
        /// What rustls says, which holds no secret.
        problem: String,
    },
    /// The certificate's roles do not allow it.
    #[error("not authorized: the certificate's roles do not allow it")]
    NotAuthorized,
    /// The endpoint is a worker, which speaks only for itself.
    #[error("the endpoint is a worker and forwards nothing: name control planes as endpoints")]
    NoForwarding,
    /// No such resource, file or image.
    #[error("not found")]
    NotFound,
    /// This Talos does not know the method or resource type: it is older, or the node is a worker.
    #[error("not supported by this Talos")]
    NotSupported,
    /// The endpoint answered, but could not reach the node.
    #[error("the endpoint cannot reach the node{}", after_colon(message))]
    TargetUnreachable {
        /// The proxy's words.
        message: String,
    },
    /// No answer in time.
    #[error("no answer within {after:.0?}")]
    Deadline {
        /// The call's own limit.
        after: Duration,
    },
    /// The connection broke after the request was sent: it may have been done.
    #[error("the connection broke before the answer: {problem}")]
    Broken {
        /// The innermost cause.
        problem: String,
    },
    /// The node refused; the words are kept back where they may hold a secret.
    #[error("refused: {code:?}{}", message.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
    Refused {
        /// The gRPC code.
        code: Code,
        /// The words of the status, `None` for calls whose words may hold a secret.
        message: Option<String>,
    },
    /// The reply did not decode or lacks what it must hold.
    #[error("the reply makes no sense: {problem}")]
    Reply {
        /// What is wrong.
        problem: String,
    },
    /// Nothing was sent, for the lease does not allow it now.
    #[error(transparent)]
    NoPermit(#[from] crate::permit::NoPermit),
}

impl Why {
    /// Whose failure it is: true when another endpoint may well answer.
    #[must_use]
    pub fn is_endpoint(&self) -> bool {
        matches!(self, Why::Connect { .. } | Why::Tls { .. } | Why::NoForwarding)
    }

    /// Whether the request cannot have been done: a mutating call may be sent again only then.
    #[must_use]
    pub fn nothing_sent(&self) -> bool {
        matches!(self, Why::Connect { .. } | Why::Tls { .. } | Why::NoForwarding | Why::NoPermit(_))
    }

    /// Sorts a status. `secret`: the words may hold a credential (ApplyConfiguration) and are dropped.
    #[must_use]
    pub fn of(status: &Status, after: Duration, secret: bool) -> Self {
        if let Some(connect) = find::<ConnectError>(status) {
            return tls_problem(connect)
                .map_or_else(|| Why::Connect { problem: innermost(status) }, |problem| Why::Tls { problem });
        }
        // With TLS 1.3 the server judges our certificate after our side of the handshake is done: its alert arrives
        // as a broken connection.
        if let Some(problem) = tls_problem(status) {
            return Why::Tls { problem };
        }
        // A status with a source was made on this side: the connection broke. One without came from the server.
        let ours = status.source().is_some();
        let message = || if secret { None } else { Some(status.message().to_owned()) };
        match status.code() {
            Code::NotFound => Why::NotFound,
            Code::PermissionDenied if status.message().contains("is not supported") => Why::NotSupported,
            Code::PermissionDenied if status.message() == "not authorized" => Why::NotAuthorized,
            // A worker's apid has no client certificate (Talos `internal/app/apid/pkg/director/director.go`).
            Code::PermissionDenied if status.message().contains("no request forwarding") => Why::NoForwarding,
            Code::Unimplemented => Why::NotSupported,
            Code::DeadlineExceeded => Why::Deadline { after },
            Code::Cancelled if status.message().contains("Timeout") => Why::Deadline { after },
            // tonic's words on this side for a reply over the limit, which the node itself did send.
            Code::OutOfRange if status.message().contains("message length too large") => {
                Why::Reply { problem: message().unwrap_or_else(|| "message length too large".to_owned()) }
            }
            _ if ours => Why::Broken { problem: innermost(status) },
            Code::Unavailable => Why::TargetUnreachable { message: message().unwrap_or_default() },
            code => Why::Refused { code, message: message() },
        }
    }
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// rustls' words about a failed handshake, if that is what is at the bottom of an error; io::Error wraps them without
/// naming them as its source.
#[must_use]
pub fn tls_problem(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls.to_string());
        }
        // What an io::Error wraps is not its source: it stands in its place. hyper-rustls wraps twice.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Words behind a colon, where there are any.
fn after_colon(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

/// The last cause of an error: what tonic and hyper say above it is about themselves.
fn innermost(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        words = error.to_string();
        next = error.source();
    }
    plain(&words)
}

/// Without what libraries say of themselves on the way to a cause, and without the number of a cause that has words.
fn plain(words: &str) -> String {
    const WRAPPERS: [&str; 7] = [
        "ServiceError: ",
        "client error (Connect): ",
        "client error (SendRequest): ",
        "tcp connect error: ",
        "connection error: ",
        "transport error: ",
        "error trying to connect: ",
    ];
    // rustls tells library authors here what people at a terminal cannot use, with a link to its manual; a proxy tells in
    // Go's words how it dials.
    const OTHERS: [(&str, &str, &str); 2] = [
        ("peer closed connection without sending TLS close_notify", "unexpected-eof", "the other side closed it"),
        ("connection error: desc = \"transport: Error while dialing: ", "\"", ""),
    ];
    let mut text = words.to_owned();
    for (begin, end, instead) in OTHERS {
        let Some(from) = text.find(begin) else { continue };
        let rest = from + begin.len();
        if let Some(to) = text[rest..].find(end) {
            text.replace_range(rest + to..rest + to + end.len(), "");
            let kept = if instead.is_empty() { rest } else { rest + to };
            text.replace_range(from..kept, instead);
        }
    }
    text = WRAPPERS.iter().fold(text, |text, wrapper| text.replace(wrapper, ""));
    while let Some(begin) = text.find(" (os error ") {
        let Some(length) = text[begin..].find(')') else { break };
        text.replace_range(begin..=begin + length, "");
    }
    text
}

/// The whole chain of an error in one line, outermost first.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        // tonic and hyper repeat their source in their own words.
        if !words.contains(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        next = error.source();
    }
    plain(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libraries_say_of_themselves_is_left_out() {
        let words = "the API server 10.0.0.2:6443: ServiceError: client error (Connect): tcp connect error: Connection refused (os error 111)";
        assert_eq!(plain(words), "the API server 10.0.0.2:6443: Connection refused");
        assert_eq!(plain("a: client error (Connect)"), "a: client error (Connect)", "nothing else is known");
        assert_eq!(plain("x (os error 2): y (os error 13)"), "x: y");
        let rustls = "it broke: peer closed connection without sending TLS close_notify: https://docs.rs/rustls/x.html#unexpected-eof; again";
        assert_eq!(plain(rustls), "it broke: the other side closed it; again");
        let go =
            "no way: connection error: desc = \"transport: Error while dialing: dial tcp 10.0.0.9:50000: i/o timeout\"";
        assert_eq!(plain(go), "no way: dial tcp 10.0.0.9:50000: i/o timeout");
    }

    /// The texts are those of talos-captures read.jsonl.
    #[test]
    fn w05_the_two_meanings_of_permission_denied() {
        let sort = |status: Status| Why::of(&status, Duration::from_secs(1), false);
        assert!(matches!(sort(Status::permission_denied("not authorized")), Why::NotAuthorized));
        let older = Status::permission_denied("resource type \"BootIDs.runtime.talos.dev\" is not supported");
        assert!(matches!(sort(older), Why::NotSupported));
        assert!(matches!(sort(Status::unimplemented("unknown method X")), Why::NotSupported));
        assert!(matches!(sort(Status::permission_denied("no request forwarding")), Why::NoForwarding));
        assert!(matches!(sort(Status::not_found("no")), Why::NotFound));
        assert!(matches!(sort(Status::unavailable("connection error: desc = …")), Why::TargetUnreachable { .. }));
    }

    #[test]
    fn a_connection_that_was_cut_is_said_without_a_link_to_a_manual() {
        let eof = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/unexpected-eof";
        let error = std::io::Error::other(Wrapped(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, eof)));
        assert_eq!(chain(&error), "the connection broke: the other side closed it");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the connection broke")]
    struct Wrapped(#[source] std::io::Error);

    #[test]
    fn w02_a_handshake_that_failed_is_found_below_everything_that_wraps_it() {
        let tls = rustls::Error::General("bad signature".into());
        let wrapped = std::io::Error::other(std::io::Error::new(std::io::ErrorKind::InvalidData, tls));
        assert!(tls_problem(&wrapped).is_some_and(|problem| problem.contains("bad signature")));
        assert_eq!(tls_problem(&std::io::Error::other("refused")), None);
    }

    #[test]
    fn the_words_of_a_refused_apply_are_dropped() {
        let status = Status::invalid_argument("diff: -password: old +password: new");
        let error = Why::of(&status, Duration::from_secs(1), true);
        assert_eq!(error.to_string(), "refused: InvalidArgument");
    }
}
