//! Every recorded refusal, sorted.

use std::time::Duration;

use tonic::{Code, Status};

use super::recordings::calls;
use crate::error::{Why, chain};

/// `(method or resource type, code, part of the words, kind)`: the first row that fits counts, and each must be used.
#[rustfmt::skip]
const KINDS: &[(&str, Code, &str, &str)] = &[
    // two meanings of PermissionDenied
    ("", Code::PermissionDenied, "not authorized", "NotAuthorized"),
    ("BootIDs.runtime.talos.dev", Code::PermissionDenied, "resource type \"BootIDs.runtime.talos.dev\" is not supported", "NotSupported"),
    ("NoSuch.cri.talos.dev", Code::PermissionDenied, "is not supported", "NotSupported"),
    ("", Code::PermissionDenied, "namespace \"nons\" is not supported", "NotSupported"),
    // missing things
    ("", Code::NotFound, "doesn't exist", "NotFound"),
    ("/machine.MachineService/Read", Code::NotFound, "no such file or directory", "NotFound"),
    ("/machine.ImageService/Remove", Code::NotFound, "not found", "NotFound"),
    ("/machine.ImageService/Pull", Code::NotFound, "failed to resolve reference", "NotFound"),
    // what this Talos does not know
    ("", Code::Unimplemented, "unknown method NoSuchMethod", "NotSupported"),
    ("", Code::Unimplemented, "unknown service nope.Nope", "NotSupported"),
    ("/machine.MachineService/Etcd", Code::Unimplemented, "only available on control plane nodes", "NotSupported"),
    ("/machine.MachineService/ApplyConfiguration", Code::Unimplemented, "the REBOOT mode is not supported", "NotSupported"),
    // no answer, by either side's count
    ("", Code::DeadlineExceeded, "context deadline exceeded", "Deadline"),
    ("", Code::DeadlineExceeded, "stream terminated by RST_STREAM with error code: CANCEL", "Deadline"),
    // the endpoint answered, the node did not
    ("", Code::Unavailable, "connect: connection refused", "TargetUnreachable"),
    ("", Code::Unavailable, "connect: no route to host", "TargetUnreachable"),
    ("", Code::Unavailable, "i/o timeout", "TargetUnreachable"),
    ("", Code::Unavailable, "no-such-host", "TargetUnreachable"),
    ("", Code::Unavailable, "x509: certificate signed by unknown authority", "TargetUnreachable"),
    ("/cosi.resource.State/Watch", Code::Unavailable, "received prior goaway", "TargetUnreachable"),
    // the node said no
    ("/machine.MachineService/ApplyConfiguration", Code::InvalidArgument, "", "Refused"),
    ("", Code::InvalidArgument, "node metadata must be single-valued", "Refused"),
    ("/cosi.resource.State/Get", Code::InvalidArgument, "one-2-many proxying is not supported", "Refused"),
    ("", Code::Internal, "invalid target", "Refused"),
    ("/machine.MachineService/EtcdMemberList", Code::Unknown, "etcdserver: no leader", "Refused"),
    ("/machine.MachineService/EtcdMemberList", Code::Unknown, "etcdserver: rpc not supported for learner", "Refused"),
    ("/machine.ImageService/Pull", Code::Unknown, "failed to parse image reference", "Refused"),
];

/// The name of the variant.
fn name(why: &Why) -> String {
    format!("{why:?}").chars().take_while(char::is_ascii_alphabetic).collect()
}

#[test]
fn w05_every_recorded_refusal_is_sorted_by_what_one_would_do_about_it() {
    let mut used = [0_usize; KINDS.len()];
    for call in calls().iter().filter(|call| call.code_number != 0) {
        let code = Code::from_i32(call.code_number);
        let fits = |(of, row, words, _): &(&str, Code, &str, &str)| {
            (call.method.starts_with(of) || call.resource_type() == *of) && *row == code && call.message.contains(words)
        };
        let row = KINDS.iter().position(fits).unwrap_or_else(|| panic!("{}: no row for {:?}", call.at, call.message));
        used[row] += 1;
        let why = Why::of(&Status::new(code, call.message.clone()), Duration::from_secs(8), false);
        assert_eq!(name(&why), KINDS[row].3, "{}: {code:?} {:?}", call.at, call.message);
        // All of these came through an endpoint that answered: another one is no better, and something was sent.
        assert!(!why.is_endpoint() && !why.nothing_sent(), "{}", call.at);
        if let Why::Refused { code: kept, message } = &why {
            assert_eq!((*kept, message.as_deref()), (code, Some(call.message.as_str())), "{}", call.at);
        }
    }
    for (row, used) in KINDS.iter().zip(used) {
        assert!(used > 0, "no recorded refusal fits {row:?}");
    }
}

/// A refused ApplyConfiguration carries a diff of the config, with the password that was to be written.
#[test]
fn w05_no_word_of_a_refused_apply_is_kept() {
    let mut diffs = 0;
    for call in calls().iter().filter(|call| call.method.ends_with("/ApplyConfiguration") && call.code_number != 0) {
        let why =
            Why::of(&Status::new(Code::from_i32(call.code_number), call.message.clone()), Duration::from_secs(8), true);
        let shown = format!("{why:?} {}", chain(&why));
        for word in ["barsecret", "diff", "registries", "RegistryAuthConfig", "nodeLabels"] {
            assert!(!shown.contains(word), "{}: {shown}", call.at);
        }
        diffs += usize::from(call.message.contains("barsecret"));
    }
    assert!(diffs > 0, "the recordings hold such a diff");
}
