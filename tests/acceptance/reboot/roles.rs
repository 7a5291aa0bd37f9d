//! What a lesser role sees of reboots: R16.

use lab::faults::When::Before;
use serde_json::Value;

use crate::harness::{Bed, row};
use crate::scene::{Gate, kill, only_stale, requests};

/// Plan and verification of `worker-1` by an identity of that role.
async fn as_seen_by(bed: &Bed, role: &str) -> [Value; 2] {
    let identity = bed.lab.dir().join(format!("talosconfig-{role}")).display().to_string();
    let replaced = [("--talosconfig", identity.as_str())];
    let plan = bed.product_with("plan", &replaced, &["-o", "json"]).await.expect(0);
    let verify = bed.product_with("verify", &replaced, &["-o", "json"]).await.expect(2);
    [plan, verify].map(|ended| row(&ended.json(), "worker-1").clone())
}

/// The boot id may not be read, so the node's own marker tells a boot from the one before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_a_lesser_role_tells_the_boots_apart_and_asks_for_no_reboot() {
    let bed = only_stale(&["worker-1"]).await;
    let mut gate = Gate::new(&bed);
    let child = bed.start(&[]);
    let held = gate.hold(Before, "Reboot worker-1", 1).await;
    kill(child).await;
    held.cut();
    drop(gate);
    let asked = requests(&bed, "Reboot", "worker-1").len();
    for role in ["reader", "operator"] {
        let [plan, verify] = as_seen_by(&bed, role).await;
        assert_eq!(plan["steps"][0], "wait for the boot", "{role}: {plan:#}");
        let loaded = &verify["claims"]["loaded"];
        let evidence = loaded["evidence"].as_str().unwrap_or_default();
        assert!(loaded["answer"] == "false" && evidence.contains("still runs"), "{role}: {loaded:#}");
    }
    bed.power_cycle("worker-1").await;
    for role in ["reader", "operator"] {
        let [plan, verify] = as_seen_by(&bed, role).await;
        assert_eq!(plan["steps"][0], "wait until it is ready", "{role}: {plan:#}");
        assert_eq!(verify["claims"]["loaded"]["answer"], "true", "{role}: {verify:#}");
        // To reboot is allowed to an operator, and to run is not.
        let identity = bed.lab.dir().join(format!("talosconfig-{role}")).display().to_string();
        let writes = bed.writes();
        let refused = bed.product_with("run", &[("--talosconfig", &identity)], &[]).await.expect(1);
        assert!(refused.stderr.contains("os:admin"), "{}", refused.stderr);
        assert_eq!(bed.writes(), writes);
    }
    assert_eq!(requests(&bed, "Reboot", "worker-1").len(), asked, "by the run that was killed, and by nobody else");
    bed.run(&[]).await.expect(0);
    bed.assert_done();
    assert_eq!((bed.truth_of("worker-1").boots, requests(&bed, "Reboot", "worker-1").len()), (1, asked));
}
