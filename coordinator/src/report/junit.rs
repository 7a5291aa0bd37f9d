//! The verification as JUnit XML, which every CI shows: a suite for each node, a case for each claim.

use agent::claims::{Answer, Claim};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::cli::args::ClaimName;
use crate::plan::{NodeRow, PlanDocument};

/// All claims, in the order in which they are told.
const CLAIMS: [ClaimName; 4] = [ClaimName::Configured, ClaimName::Loaded, ClaimName::Pull, ClaimName::Proof];

/// The document. A claim that was not asked for and does not hold is skipped, with its evidence.
///
/// # Errors
/// None that a document of this tool can cause.
pub fn text(document: &PlanDocument, asked: &[ClaimName]) -> Result<String, quick_junit::SerializeError> {
    let mut report = Report::new("talos-ghcr verify");
    for node in &document.nodes {
        let mut suite = TestSuite::new(node.name.as_str());
        suite.add_test_cases(CLAIMS.map(|claim| case(node, claim, asked.contains(&claim))));
        report.add_test_suite(suite);
    }
    report.to_string()
}

fn case(node: &NodeRow, name: ClaimName, asked: bool) -> TestCase {
    let claim = node.claims.as_ref().map(|claims| name.of(claims));
    let mut status = match claim {
        Some(Claim { answer: Answer::True, .. }) => TestCaseStatus::success(),
        _ if !asked => TestCaseStatus::skipped(),
        Some(Claim { answer: Answer::False, .. }) => TestCaseStatus::non_success(NonSuccessKind::Failure),
        // Not seen is not the same as not so, and fails all the same.
        Some(Claim { answer: Answer::Unknown, .. }) | None => TestCaseStatus::non_success(NonSuccessKind::Error),
    };
    match claim {
        Some(Claim { answer: Answer::True, .. }) => {}
        Some(claim) => drop(status.set_message(claim.evidence.as_str())),
        None => drop(status.set_message(node.reason.as_str())),
    }
    let mut case = TestCase::new(name.to_string(), status);
    case.set_classname(node.name.as_str());
    case
}
