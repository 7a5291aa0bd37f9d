//! What the list of an attempt's jobs says of a holder. Pure.
//!
//! A holder knows the key of its job in the workflow (`GITHUB_JOB`) and its runner; the API knows the job's name, which
//! may be another, and carries the values of a matrix or the caller of a reusable workflow. So the runner is the first
//! mark and the name narrows it. A runner has one job at a time, but may have had several of one attempt.

use jiff::Timestamp;
use serde::Deserialize;

use super::place::Place;
use crate::report::progress::short;

/// Unless `timeout-minutes` says otherwise.
const LONGEST_JOB: std::time::Duration = std::time::Duration::from_secs(6 * 3600);

/// `GET /repos/{owner}/{repo}/actions/runs/{run_id}/attempts/{attempt_number}/jobs`, as far as it is used
/// (<https://docs.github.com/en/rest/actions/workflow-jobs>).
#[derive(Debug, Deserialize)]
pub(super) struct Jobs {
    pub(super) total_count: usize,
    pub(super) jobs: Vec<Job>,
}

/// One of them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Job {
    pub(super) run_id: Option<u64>,
    pub(super) run_attempt: Option<u32>,
    #[serde(default)]
    pub(super) name: String,
    pub(super) status: String,
    pub(super) conclusion: Option<String>,
    pub(super) started_at: Option<String>,
    pub(super) completed_at: Option<String>,
    pub(super) runner_name: Option<String>,
}

/// `GET /repos/{owner}/{repo}/actions/runs/{run_id}/attempts/{attempt_number}`, as far as it is used
/// (<https://docs.github.com/en/rest/actions/workflow-runs>).
#[derive(Debug, Deserialize)]
pub(super) struct Attempt {
    pub(super) id: u64,
    pub(super) run_attempt: u32,
    pub(super) status: Option<String>,
    pub(super) conclusion: Option<String>,
}

/// What a list says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The job has ended.
    Ended(String),
    /// The job has not ended.
    Runs(String),
    /// The list does not tell; the whole attempt may.
    Open(String),
}

const COMPLETED: &str = "completed";

/// Judges the holder at `place`. `ours`: we run in that very attempt, so that one of its jobs is our own.
pub(super) fn of_jobs(place: &Place, list: &Jobs, ours: bool, now: Timestamp) -> Finding {
    let run = format!("run {}, attempt {}", place.run, place.attempt);
    if list.total_count > list.jobs.len() {
        return Finding::Open(format!("{run} has {} jobs, more than are read", list.total_count));
    }
    // A rerun of some jobs lists the others of the attempt before as well.
    let jobs: Vec<&Job> = list
        .jobs
        .iter()
        .filter(|job| job.run_id.is_none_or(|id| id == place.run))
        .filter(|job| job.run_attempt.is_none_or(|number| number == place.attempt))
        .collect();
    if jobs.is_empty() {
        return Finding::Open(format!("{run} lists no job"));
    }
    let Some(runner) = &place.runner else { return of_any_job(&run, &jobs, ours) };
    let there: Vec<&Job> = jobs.iter().copied().filter(|job| job.runner_name.as_ref() == Some(runner)).collect();
    let named: Vec<&Job> =
        there.iter().copied().filter(|job| place.job.as_ref().is_some_and(|key| is_named(&job.name, key))).collect();
    let held = if named.is_empty() { there } else { named };
    match &held[..] {
        [] if jobs.iter().all(|job| job.status == COMPLETED) => {
            Finding::Ended(format!("all jobs of {run} have completed"))
        }
        [] => Finding::Open(format!("no job of {run} has its runner {}", plain(runner))),
        all if all.iter().all(|job| job.status == COMPLETED) => {
            // Of several the one that ended last bounds them all.
            let last = all.iter().max_by_key(|job| time(job.completed_at.as_ref()));
            Finding::Ended(last.map_or_else(String::new, |job| ended(&run, job, now)))
        }
        [job] => Finding::Runs(runs(&run, job, now)),
        several => Finding::Open(format!(
            "{} jobs of {run} had its runner {}, and not all have completed",
            several.len(),
            plain(runner)
        )),
    }
}

/// A holder that does not say which job it is of: the older script's.
fn of_any_job(run: &str, jobs: &[&Job], ours: bool) -> Finding {
    if jobs.iter().all(|job| job.status == COMPLETED) {
        return Finding::Ended(format!("all jobs of {run} have completed"));
    }
    if ours {
        return Finding::Open(format!("it is of {run}, as we are, and does not say of which job"));
    }
    match jobs.iter().find(|job| job.status == "in_progress") {
        Some(job) => Finding::Runs(format!("the job {:?} of {run} is in progress", plain(&job.name))),
        None => Finding::Open(format!("{run} has not completed, but no job of it is in progress")),
    }
}

/// Judges by the attempt as a whole, where its jobs did not tell.
pub(super) fn of_attempt(place: &Place, attempt: &Attempt) -> Finding {
    let run = format!("run {}, attempt {}", place.run, place.attempt);
    if (attempt.id, attempt.run_attempt) != (place.run, place.attempt) {
        return Finding::Open(format!("GitHub answers for another run than {run}"));
    }
    let status = attempt.status.as_deref().map_or_else(|| "no status".to_owned(), plain);
    if status == COMPLETED {
        return Finding::Ended(format!("its {run}, has completed{}", conclusion(attempt.conclusion.as_ref())));
    }
    Finding::Open(format!("{run} is {}", status.replace('_', " ")))
}

/// Whether a job of that name may be the one of that key: `key`, `key (matrix)`, `caller / key`.
fn is_named(name: &str, key: &str) -> bool {
    let own = name.rsplit_once(" / ").map_or(name, |(_, own)| own);
    [name, own].iter().any(|name| *name == key || name.strip_prefix(key).is_some_and(|rest| rest.starts_with(" (")))
}

fn ended(run: &str, job: &Job, now: Timestamp) -> String {
    let since = time(job.completed_at.as_ref()).and_then(|at| ago(at, now));
    let since = since.map(|since| format!(" {since} ago")).unwrap_or_default();
    format!("its job {:?} of {run}, completed{since}{}", plain(&job.name), conclusion(job.conclusion.as_ref()))
}

fn runs(run: &str, job: &Job, now: Timestamp) -> String {
    let mut text = format!("its job {:?} of {run}, is {}", plain(&job.name), plain(&job.status).replace('_', " "));
    if let Some(started) = time(job.started_at.as_ref()) {
        if let Some(since) = ago(started, now) {
            text.push_str(&format!(", started {since} ago"));
        }
        if let Ok(end) = started.checked_add(LONGEST_JOB) {
            let end = end.strftime("%Y-%m-%d %H:%MZ");
            text.push_str(&format!("; GitHub ends it at {end}, unless its timeout-minutes says otherwise"));
        }
    }
    text
}

fn conclusion(of: Option<&String>) -> String {
    of.map(|conclusion| format!(" ({})", plain(conclusion))).unwrap_or_default()
}

fn time(text: Option<&String>) -> Option<Timestamp> {
    text?.parse().ok()
}

fn ago(at: Timestamp, now: Timestamp) -> Option<String> {
    std::time::Duration::try_from(now.duration_since(at)).ok().map(short)
}

/// A text of others as a line shows it.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}
