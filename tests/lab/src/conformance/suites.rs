//! What is run, on what, and why some of it runs on one only.

use std::fmt;
use std::process::Command;

use crate::options::KUBERNETES_VARIABLE;
use crate::real::Programs;

/// Who answers in a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// The lab.
    Simulated,
    /// Real components.
    Real,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Simulated => "simulated",
            Self::Real => "real",
        })
    }
}

/// What a suite needs besides cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    Kubernetes,
    Registry,
}

/// How a suite is run on a backend.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// Tests: package, what of it, and their names' parts.
    Tests { target: &'static [&'static str], filter: &'static [&'static str], needs: Needs },
    /// The demo.
    Demo,
    /// Not at all, for that reason.
    Not(&'static str),
}

/// The variable that names the real registry's program.
pub(super) const REGISTRY_VARIABLE: &str = "TALOS_GHCR_REGISTRY_BINARY";

/// A suite.
pub(super) struct Suite {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is about.
    pub of: &'static str,
    /// Where it runs.
    pub on: &'static [(Backend, How)],
}

const ACCEPTANCE: &[&str] = &["-p", "coordinator", "--test", "acceptance"];
const CONFORMANCE: &[&str] = &["-p", "coordinator", "--test", "conformance"];
const LAB: &[&str] = &["-p", "lab", "--lib"];
/// A test is called after what it proves: `l04_…`, or `o01_l14_…`.
const LEASES_AND_FENCES: &[&str] =
    &["::l0", "::l1", "::l2", "::l3", "_l0", "_l1", "_l2", "_l3", "::f0", "::f1", "::f2", "_f0", "_f1", "_f2", "::o01"];

/// All of them.
pub(super) const SUITES: [Suite; 9] = [
    Suite {
        name: "behaviours",
        of: "leases, fences and the endpoint node last (L, F, O01)",
        on: &[
            (Backend::Simulated, tests(ACCEPTANCE, LEASES_AND_FENCES, Needs::Nothing)),
            (Backend::Real, tests(ACCEPTANCE, LEASES_AND_FENCES, Needs::Kubernetes)),
        ],
    },
    Suite {
        name: "deaths",
        of: "a run that dies at any sort of request, and the next one that finishes (X); eight of the points on real",
        on: &[
            (Backend::Simulated, tests(ACCEPTANCE, &["deaths::"], Needs::Nothing)),
            (Backend::Real, tests(ACCEPTANCE, &["deaths::"], Needs::Kubernetes)),
        ],
    },
    Suite {
        name: "demo",
        of: "a whole roll, and a second run that writes nothing",
        on: &[(Backend::Simulated, How::Demo), (Backend::Real, How::Demo)],
    },
    Suite {
        name: "recordings",
        of: "recorded answers of a real API server, asked again",
        on: &[
            (Backend::Simulated, tests(LAB, &["replay::"], Needs::Nothing)),
            (Backend::Real, tests(CONFORMANCE, &["replay::"], Needs::Kubernetes)),
        ],
    },
    Suite {
        name: "traps",
        of: "answers of a real API server that surprise",
        on: &[
            (
                Backend::Simulated,
                How::Not("the recordings hold the lab to the same answers; a test of it here would test the lab alone"),
            ),
            (Backend::Real, tests(CONFORMANCE, &["traps::"], Needs::Kubernetes)),
        ],
    },
    Suite {
        name: "rights",
        of: "deploy/rbac as it is, and without each verb (L25)",
        on: &[
            (
                Backend::Simulated,
                How::Not("in `behaviours`; the lab knows rules only, no roles, bindings or names in them"),
            ),
            (Backend::Real, tests(CONFORMANCE, &["rights::"], Needs::Kubernetes)),
        ],
    },
    Suite {
        name: "others",
        of: "kubectl, client-go and the old script beside us, evictions beside each other (F03, F06, F07, A02, D09, L28)",
        on: &[
            (
                Backend::Simulated,
                How::Not(
                    "kubectl and client-go ask for discovery, which the lab does not play; its own hand does their deeds there",
                ),
            ),
            (Backend::Real, tests(CONFORMANCE, &["operator::", "election::", "drain::"], Needs::Kubernetes)),
        ],
    },
    Suite {
        name: "registry",
        of: "the preflight and the nodes' pulls (K)",
        on: &[
            (Backend::Simulated, tests(ACCEPTANCE, &["registry::", "pulls::"], Needs::Nothing)),
            (Backend::Real, tests(CONFORMANCE, &["registry::"], Needs::Registry)),
        ],
    },
    Suite {
        name: "talos",
        of: "recorded answers of real Talos nodes, asked again (W07)",
        on: &[
            (Backend::Simulated, tests(LAB, &["w07"], Needs::Nothing)),
            (
                Backend::Real,
                How::Not("needs a Talos cluster: make conformance-talos (tests/conformance/talos/README.md)"),
            ),
        ],
    },
];

const fn tests(target: &'static [&'static str], filter: &'static [&'static str], needs: Needs) -> How {
    How::Tests { target, filter, needs }
}

impl How {
    /// Why it cannot be run here.
    pub fn missing(&self, backend: Backend) -> Option<String> {
        match self {
            Self::Not(why) => Some((*why).to_owned()),
            Self::Tests { needs: Needs::Kubernetes, .. } => Programs::find().err().map(|missing| missing.to_string()),
            Self::Demo if backend == Backend::Real => Programs::find().err().map(|missing| missing.to_string()),
            Self::Tests { needs: Needs::Registry, .. } if std::env::var_os(REGISTRY_VARIABLE).is_none() => {
                Some(format!("{REGISTRY_VARIABLE} is not set: `make conformance` builds it"))
            }
            Self::Tests { .. } | Self::Demo => None,
        }
    }

    /// How it is run. Cargo has built everything before.
    pub fn command(&self, backend: Backend) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        match self {
            Self::Tests { target, filter, .. } => {
                command.args(["test", "--locked"]).args(*target).arg("--").args(*filter);
                // Two cores: a test is several processes, and a real cluster six more.
                command.args(["--test-threads", "2"]);
            }
            Self::Demo | Self::Not(_) => {
                command = Command::new(std::env::current_exe().unwrap_or_else(|_| "talos-ghcr-lab".into()));
                let product = std::env::current_exe().unwrap_or_default().with_file_name("talos-ghcr");
                command.arg("demo").arg("--product").arg(product).arg("--kubernetes").arg(backend.to_string());
            }
        }
        command.env(KUBERNETES_VARIABLE, backend.to_string());
        command
    }
}
