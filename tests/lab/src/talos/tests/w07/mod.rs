//! The recorded requests, asked again of nodes of the lab in the same state: the same code, the same words of a refusal,
//! and the same value in every field that the product reads. What is not alike is in a list, with the reason; a
//! difference that is not listed fails, and so does an entry of the list that is alike.

mod flows;
mod one_cluster;
mod one_node;
mod recording;
mod seen;
mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::Code;
use tonic::transport::Channel;

use super::*;
use recording::{Call, calls, config};
use seen::Side;
use wire::{Answer, ask};

/// What is not alike, and why. An entry is for all calls whose line has all of these words.
pub(super) struct Unlike {
    words: &'static [&'static str],
    why: &'static str,
}

const fn unlike(words: &'static [&'static str], why: &'static str) -> Unlike {
    Unlike { words, why }
}

/// Calls that are not asked, and calls whose answers differ.
#[derive(Clone, Copy)]
pub(super) struct Lists {
    left_out: &'static [Unlike],
    different: &'static [Unlike],
}

/// Longer than any call takes that has an answer.
const LONG: Duration = Duration::from_secs(5);
/// For calls that had no answer until the recorder's deadline, and for watches.
const SHORT: Duration = Duration::from_millis(300);
/// All that follows a change is over: rendering and a restart of the CRI.
const SETTLED: Duration = Duration::from_millis(400);
/// An address that no node of the lab has.
const NOBODY: &str = "127.255.255.99";

/// A bed that is asked what real nodes were asked.
struct Replay<'a> {
    bed: &'a Bed,
    /// Recorded addresses and those of the lab.
    addresses: Vec<(String, String)>,
    channels: BTreeMap<String, Channel>,
    endpoint: String,
    real: Side,
    lab: Side,
    lists: Lists,
    /// How often each entry was met, of both lists.
    met: [Vec<usize>; 2],
    wrong: Vec<String>,
    alike: usize,
}

impl<'a> Replay<'a> {
    /// `nodes`: recorded addresses and the names of nodes; the first is the endpoint. `digests` of images that the
    /// registry gives.
    fn new(bed: &'a Bed, nodes: &[(&str, &str)], digests: &[&str], lists: Lists) -> Self {
        let mut addresses: Vec<_> =
            nodes.iter().map(|(there, name)| ((*there).to_owned(), bed.address(name))).collect();
        addresses.push(("10.5.0.99".to_owned(), NOBODY.to_owned()));
        let digests: Vec<_> = digests.iter().map(|digest| (*digest).to_owned()).collect();
        Self {
            bed,
            channels: BTreeMap::new(),
            endpoint: nodes[0].1.to_owned(),
            real: Side::new(Vec::new(), digests.clone()),
            lab: Side::new(backwards(&addresses), digests),
            addresses,
            lists,
            met: [vec![0; lists.left_out.len()], vec![0; lists.different.len()]],
            wrong: Vec::new(),
            alike: 0,
        }
    }

    /// One more address that both have, for instance a virtual one.
    fn also(&mut self, there: &str, here: &str) {
        self.addresses.push((there.to_owned(), here.to_owned()));
        self.lab.also(backwards(&self.addresses));
    }

    fn forget(&mut self) {
        self.real.forget();
        self.lab.forget();
    }

    fn reboot(&mut self) {
        self.real.reboot();
        self.lab.reboot();
    }

    /// Asks and compares.
    async fn call(&mut self, at: &str, call: &Call) {
        let line = line(at, call);
        if self.is_listed(0, &line) {
            return;
        }
        let answer = self.ask(call, if call.code == Code::DeadlineExceeded as i32 { SHORT } else { LONG }).await;
        self.compare(&line, call, &answer);
    }

    fn ask(&mut self, call: &Call, timeout: Duration) -> impl Future<Output = Answer> + use<> {
        let channel = self.channels.entry(call.role.clone());
        let channel = channel.or_insert_with(|| self.bed.channel(&self.endpoint, &format!("os:{}", call.role)));
        let mut metadata = Vec::new();
        for (key, values) in &call.metadata {
            let key = if key == "node" { "node" } else { "nodes" };
            let there = |value: &String| {
                self.addresses.iter().fold(value.clone(), |value, (there, here)| value.replace(there, here))
            };
            metadata.extend(values.iter().map(|value| (key, there(value))));
        }
        let (channel, path, request) = (channel.clone(), call.method.clone(), call.request());
        async move { ask(channel, &path, &metadata, request, timeout).await }
    }

    fn compare(&mut self, line: &str, call: &Call, answer: &Answer) {
        let difference = self.difference(call, answer);
        match (difference, self.is_listed(1, line)) {
            (None, false) => self.alike += 1,
            (Some(_), true) => {}
            (Some(difference), false) => self.wrong.push(format!("{line}: {difference}")),
            (None, true) => self.wrong.push(format!("{line}: is listed and alike")),
        }
    }

    fn difference(&mut self, call: &Call, answer: &Answer) -> Option<String> {
        let service = call.method.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
        let mut real = Vec::new();
        for reply in &call.replies {
            if !reply.left_out {
                let config = reply.config();
                real.extend(self.real.words(call.target(), call.rpc(), &service, &reply.bytes(), config.as_deref()));
            }
        }
        let mut lab = Vec::new();
        for reply in &answer.replies {
            lab.extend(self.lab.words(call.target(), call.rpc(), &service, reply, None));
        }
        // Several nodes answer in any order.
        if service == "machine.ImageService" || call.rpc() == "ImageList" || call.metadata.contains_key("nodes") {
            real.sort();
            lab.sort();
        }
        if answer.code as i32 != call.code {
            return Some(format!("{} instead of {}: {}", answer.code, Code::from(call.code), answer.message));
        }
        // Who ran out of time says so in words of its own.
        let is_told = !matches!(answer.code, Code::Ok | Code::DeadlineExceeded);
        let said = self.lab.text(&answer.message);
        if is_told && said != call.message {
            return Some(format!("it says\n  {said:?} instead of\n  {:?}", call.message));
        }
        if call.replies.iter().any(|reply| reply.left_out) {
            let (lab, real) = (answer.replies.len(), call.replies.len());
            return (lab != real).then(|| format!("{lab} replies instead of {real}"));
        }
        (lab != real).then(|| {
            let only = |of: &[String], other: &[String]| {
                of.iter().filter(|word| !other.contains(word)).cloned().collect::<Vec<_>>().join("\n    ")
            };
            format!("\n  only the lab:\n    {}\n  only the real one:\n    {}", only(&lab, &real), only(&real, &lab))
        })
    }

    fn is_listed(&mut self, list: usize, line: &str) -> bool {
        let entries = if list == 0 { self.lists.left_out } else { self.lists.different };
        let found = entries.iter().position(|entry| entry.words.iter().all(|word| line.contains(word)));
        if let Some(index) = found {
            self.met[list][index] += 1;
        }
        found.is_some()
    }

    /// So many calls are alike and all others are listed; what is listed was met.
    #[track_caller]
    fn finish(self, alike: usize) {
        let entries = [self.lists.left_out, self.lists.different];
        let stale = entries.iter().zip(&self.met).flat_map(|(entries, met)| {
            let never = entries.iter().zip(met).filter(|(_, met)| **met == 0);
            never.map(|(entry, _)| format!("{:?} is listed and never met", entry.words))
        });
        let wrong: Vec<_> = self.wrong.iter().cloned().chain(stale).collect();
        assert!(wrong.is_empty(), "{} alike, {} not:\n{}", self.alike, wrong.len(), wrong.join("\n"));
        assert_eq!(self.alike, alike, "calls that are alike");
    }
}

fn line(at: &str, call: &Call) -> String {
    let expecting = if call.code == 0 { String::new() } else { format!(" expecting {}", call.code) };
    format!("{at}: {} ({} as {}){expecting}", call.name, call.rpc(), call.role)
}

/// The longest first, so that no address is taken for the beginning of another.
fn backwards(addresses: &[(String, String)]) -> Vec<(String, String)> {
    let mut pairs: Vec<_> = addresses.iter().map(|(there, here)| (here.clone(), there.clone())).collect();
    pairs.sort_by_key(|(here, _)| std::cmp::Reverse(here.len()));
    pairs
}

/// Both lists of all scenes as they stand in fixtures/talos-captures/NOT-ALIKE.md.
#[test]
fn w07_what_is_not_alike_is_written_down() {
    let mut text = String::from(
        "# Where the lab's Talos nodes do not answer as real ones did\n\nWritten by `tests/lab/src/talos/tests/w07`, which \
         fails when this differs; each entry is for the recorded calls whose line has all of its words.\n",
    );
    let scenes = one_node::SCENES.iter().chain(one_cluster::SCENES).chain(flows::SCENES);
    for (title, lists) in scenes {
        text.push_str(&format!("\n## {title}\n\n"));
        for (kind, entries) in [("not asked", lists.left_out), ("different", lists.different)] {
            for entry in entries {
                text.push_str(&format!("- {kind}: `{}`: {}\n", entry.words.join("` `"), entry.why));
            }
        }
        if lists.left_out.is_empty() && lists.different.is_empty() {
            text.push_str("Nothing.\n");
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/talos-captures/NOT-ALIKE.md");
    if std::env::var_os("WRITE_NOT_ALIKE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), text, "WRITE_NOT_ALIKE=1 writes it again");
}
