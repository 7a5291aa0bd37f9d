//! What a change sets off on 1.14, seen by watches that were open before it.

use futures::future;

use super::*;

const B: &str = "v1.14.0-rc.1";
const WITHOUT_KUBERNETES: Beginning = Beginning { first_boot: true, kubelet: false, etcd: false };
const NODES: [(&str, &str); 1] = [("10.5.0.2", "talos-vc7-ari")];
/// From the apply to the end of all watches: a CRI restart and its health.
const CHANGE: Duration = Duration::from_millis(700);
/// A TRY of four seconds, a quarter here, and two restarts.
const TRY: Duration = Duration::from_millis(1900);

/// Every scene and its lists.
pub(super) const SCENES: &[(&str, Lists)] =
    &[("1.14.0-rc.1: rotations", LISTS), ("1.14.0-rc.1: TRY and STAGED", LISTS), ("1.14.0-rc.1: forms", LISTS)];

const LISTS: Lists = Lists { left_out: &[unlike(&["(Events as"], "the product reads no events")], different: &[] };

/// Replays the flows of a file one after another; each begins with the machine configs that are given for it.
async fn flows(file: &str, before: &[(&str, &[(Mode, &str)])], alike: usize) {
    let nodes = vec![(config("01.yaml"), NODES[0].1.to_owned(), Role::ControlPlane)];
    let bed = Bed::of(nodes, "1.14.0-rc.1", WITHOUT_KUBERNETES).await;
    let mut replay = Replay::new(&bed, &NODES, &[], LISTS);
    let calls = calls(B, file);
    let flow_of = |call: &Call| call.name.split(": ").next().unwrap_or_default().to_owned();
    let mut left = calls.as_slice();
    let mut met = Vec::new();
    while let Some(first) = left.first() {
        let name = flow_of(first);
        let end = left.iter().position(|call| flow_of(call) != name).unwrap_or(left.len());
        let (flow, rest) = left.split_at(end);
        left = rest;
        let (_, from) = before.iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("{name} begins with what?"));
        for (mode, from) in *from {
            bed.apply(NODES[0].1, &String::from_utf8(config(from)).unwrap(), *mode).await.unwrap();
            bed.clock.sleep(SETTLED).await;
        }
        replay.forget();
        replay.flow(file, flow).await;
        met.push(name);
    }
    assert_eq!(met, before.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    replay.finish(alike);
}

impl Replay<'_> {
    /// The first call applies, the others watch; they were on before it.
    async fn flow(&mut self, at: &str, flow: &[Call]) {
        let (apply, watches) = flow.split_first().unwrap();
        assert_eq!(apply.rpc(), "ApplyConfiguration");
        let length = if apply.name.contains("try") { TRY } else { CHANGE };
        let watches: Vec<_> = watches.iter().filter(|call| !self.is_listed(0, &line(at, call))).collect();
        let asked: Vec<_> = watches.iter().map(|call| self.ask(call, length)).collect();
        let applied = self.ask(apply, LONG);
        let clock = self.bed.clock.clone();
        let later = async {
            clock.sleep(Duration::from_millis(120)).await;
            applied.await
        };
        let (answers, applied) = future::join(future::join_all(asked), later).await;
        self.compare(&line(at, apply), apply, &applied);
        for (call, answer) in watches.into_iter().zip(answers) {
            self.compare(&line(at, call), call, &answer);
        }
    }
}

#[tokio::test]
async fn w07_rotations_seen_by_watches() {
    let before: [(&str, &[(Mode, &str)]); 5] = [
        ("flow-rotate", &[(Mode::NoReboot, "01.yaml")]),
        ("flow-equal", &[(Mode::NoReboot, "11.yaml")]),
        ("flow-annotation", &[(Mode::NoReboot, "11.yaml")]),
        ("flow-mirror", &[(Mode::NoReboot, "02.yaml")]),
        ("flow-back", &[(Mode::NoReboot, "02.yaml")]),
    ];
    flows("rotate", &before, 40).await;
}

#[tokio::test]
async fn w07_try_and_staged_seen_by_watches() {
    let before: [(&str, &[(Mode, &str)]); 4] = [
        ("flow-try", &[(Mode::NoReboot, "02.yaml")]),
        ("flow-staged", &[(Mode::NoReboot, "02.yaml")]),
        ("flow-staged2", &[(Mode::NoReboot, "16.yaml")]),
        ("flow-over-staged", &[(Mode::NoReboot, "11.yaml"), (Mode::Staged, "09.yaml")]),
    ];
    flows("try-staged", &before, 32).await;
}

#[tokio::test]
async fn w07_legacy_and_document_forms_seen_by_watches() {
    let before: [(&str, &[(Mode, &str)]); 6] = [
        ("variant-lreg", &[(Mode::NoReboot, "02.yaml")]),
        ("variant-lreg2", &[(Mode::NoReboot, "12.yaml")]),
        ("variant-rboth", &[(Mode::NoReboot, "13.yaml")]),
        ("variant-both", &[(Mode::NoReboot, "16.yaml")]),
        ("variant-kn", &[(Mode::NoReboot, "14.yaml")]),
        ("variant-kn2", &[(Mode::NoReboot, "17.yaml")]),
    ];
    flows("variants", &before, 48).await;
}
