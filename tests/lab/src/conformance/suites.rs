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

/// What is real in a suite, and so has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing is.
    Nothing,
    /// Kubernetes, and these programs beside it.
    Kubernetes(&'static [&'static str]),
    /// The registry; Kubernetes is simulated.
    Registry,
}

/// How a suite is run.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// The tests of a target whose names contain one of these.
    Tests { target: &'static [&'static str], filter: &'static [&'static str] },
    /// The demo.
    Demo,
}

/// Whether a suite is run on a backend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan {
    /// So, if what it needs is there.
    Run(How, Needs),
    /// Never, for that reason.
    Never(&'static str),
}

/// The variable that names the real registry's program.
pub const REGISTRY_VARIABLE: &str = "TALOS_GHCR_REGISTRY_BINARY";

/// A suite.
pub(super) struct Suite {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is about.
    pub of: &'static str,
    /// Where it runs.
    pub on: &'static [(Backend, Plan)],
}

const ACCEPTANCE: &[&str] = &["-p", "coordinator", "--test", "acceptance"];
const CONFORMANCE: &[&str] = &["-p", "coordinator", "--test", "conformance"];
const LAB: &[&str] = &["-p", "lab", "--lib"];
/// A test is called after what it proves: `l04_…`, or `o01_l14_…`; the rest by the module.
const BEHAVIOURS: &[&str] = &[
    "::l0",
    "::l1",
    "::l2",
    "::l3",
    "_l0",
    "_l1",
    "_l2",
    "_l3",
    "::f0",
    "::f1",
    "::f2",
    "_f0",
    "_f1",
    "_f2",
    "drain::d",
    "reboot::",
    "reach::",
    "endpoint::",
    "churn::",
    "gates::",
    "managers::",
    "hooks::",
];

/// All of them.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "behaviours",
        of: "leases, fences, drains, gates, reboots, the endpoint, churn and hooks (L, F, D, R, O, A, H)",
        on: &[
            (Backend::Simulated, tests(ACCEPTANCE, BEHAVIOURS, Needs::Nothing)),
            (Backend::Real, tests(ACCEPTANCE, BEHAVIOURS, Needs::Kubernetes(&[]))),
        ],
    },
    Suite {
        name: "deaths",
        of: "a run that dies at any sort of request, and the next one that finishes (X); eight of the points on real",
        on: &[
            (Backend::Simulated, tests(ACCEPTANCE, &["deaths::"], Needs::Nothing)),
            (Backend::Real, tests(ACCEPTANCE, &["deaths::"], Needs::Kubernetes(&[]))),
        ],
    },
    Suite {
        name: "demo",
        of: "a whole roll, and a second run that writes nothing",
        on: &[
            (Backend::Simulated, Plan::Run(How::Demo, Needs::Nothing)),
            (Backend::Real, Plan::Run(How::Demo, Needs::Kubernetes(&[]))),
        ],
    },
    Suite {
        name: "recordings",
        of: "recorded answers of a real API server, asked again",
        on: &[
            (Backend::Simulated, tests(LAB, &["replay::"], Needs::Nothing)),
            (Backend::Real, tests(CONFORMANCE, &["replay::"], Needs::Kubernetes(&[]))),
        ],
    },
    Suite {
        name: "traps",
        of: "what a real API server does that surprises its clients",
        on: &[
            (
                Backend::Simulated,
                Plan::Never(
                    "the lab has no etcd to freeze or to compact, and no two writers that collide; the rest is in `recordings`",
                ),
            ),
            (Backend::Real, tests(CONFORMANCE, &["traps::", "drain::"], Needs::Kubernetes(&["kubectl"]))),
        ],
    },
    Suite {
        name: "rights",
        of: "deploy/rbac as it is, and without each verb (L25)",
        on: &[
            (
                Backend::Simulated,
                Plan::Never(
                    "the lab knows rules, but no roles, bindings or names in them; those rules are in `behaviours`",
                ),
            ),
            (Backend::Real, tests(CONFORMANCE, &["rights::"], Needs::Kubernetes(&["kubectl"]))),
        ],
    },
    Suite {
        name: "others",
        of: "kubectl, client-go's leader election and the old script beside us (F03, F06, F07, A02, L28)",
        on: &[
            (
                Backend::Simulated,
                Plan::Never(
                    "the lab answers only what the product asks; its own hand does the same deeds in `behaviours`",
                ),
            ),
            (
                Backend::Real,
                tests(CONFORMANCE, &["operator::", "election::"], Needs::Kubernetes(&["kubectl", "leader-election"])),
            ),
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
                Plan::Never("needs a Talos cluster: make conformance-talos (tests/conformance/talos/README.md)"),
            ),
        ],
    },
];

const fn tests(target: &'static [&'static str], filter: &'static [&'static str], needs: Needs) -> Plan {
    Plan::Run(How::Tests { target, filter }, needs)
}

impl Needs {
    /// What of it is not there.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Kubernetes(more) => {
                Programs::find().and_then(|programs| programs.with(more)).err().map(|missing| missing.to_string())
            }
            Self::Registry => std::env::var_os(REGISTRY_VARIABLE)
                .is_none_or(|path| path.is_empty())
                .then(|| format!("{REGISTRY_VARIABLE} is not set: `make conformance` builds it where Go is installed")),
        }
    }

    /// Who plays Kubernetes.
    fn kubernetes(self) -> Backend {
        if matches!(self, Self::Kubernetes(_)) { Backend::Real } else { Backend::Simulated }
    }
}

impl How {
    /// How it is run. Cargo has built everything before.
    pub fn command(self, needs: Needs) -> Command {
        let kubernetes = needs.kubernetes().to_string();
        let mut command = match self {
            Self::Tests { target, filter } => {
                let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
                command.args(["test", "--locked"]).args(target).arg("--").args(filter);
                // Two cores: a test is several processes, and a real cluster six more.
                command.args(["--test-threads", "2"]);
                command
            }
            Self::Demo => {
                let lab = std::env::current_exe().unwrap_or_else(|_| "talos-ghcr-lab".into());
                let mut command = Command::new(&lab);
                command.arg("demo").arg("--product").arg(lab.with_file_name("talos-ghcr"));
                command.args(["--kubernetes", &kubernetes]);
                command
            }
        };
        command.env(KUBERNETES_VARIABLE, kubernetes);
        command
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What a module of the conformance tests is for when it holds no test.
    const HELPERS: [&str; 3] = ["harness", "kubectl", "scene"];
    /// Asked for by a target of its own.
    const APART: [&str; 1] = ["talos"];

    #[test]
    fn every_module_of_the_conformance_tests_is_in_a_suite() {
        let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/main.rs");
        let text = std::fs::read_to_string(main).unwrap();
        let modules = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        let filters: Vec<&str> = SUITES
            .iter()
            .flat_map(|suite| suite.on)
            .filter_map(|(_, plan)| match plan {
                Plan::Run(How::Tests { target, filter }, _) if *target == CONFORMANCE => Some(*filter),
                _ => None,
            })
            .flatten()
            .copied()
            .collect();
        for module in modules.filter(|module| !HELPERS.contains(module) && !APART.contains(module)) {
            assert!(filters.contains(&format!("{module}::").as_str()), "{module} is in no suite");
        }
    }

    #[test]
    fn the_documentation_names_every_suite() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
        let text = std::fs::read_to_string(docs).unwrap();
        for suite in SUITES {
            assert!(text.contains(&format!("| `{}` |", suite.name)), "{} is not in docs/conformance.md", suite.name);
        }
    }
}
