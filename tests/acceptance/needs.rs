//! What `plan` says that a run would need and not get, and whether its gates are open; without a write.

use lab::kube::authz::{Rule, rules_of};
use serde_json::{Value, json};

use crate::harness::{Bed, finish, read};
use crate::scene::two_workers;

fn needs(plan: &Value) -> String {
    let needs = plan["needs"].as_array().expect("a list");
    needs.iter().map(|need| need.as_str().expect("words").to_owned() + "\n").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w02_a_plan_says_what_a_run_would_need_and_not_get() {
    let bed = two_workers().await;
    let plan = bed.product("plan", &["-o", "json"]).await.expect(0).json();
    assert_eq!((&plan["needs"], plan["gates"][0]["open"].as_bool()), (&json!([]), Some(true)), "{plan:#}");

    // A role without one verb, a reader's identity, and a registry that refuses.
    let role = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/rbac/clusterrole.yaml");
    let rules = rules_of(&read(&role)).expect("the ClusterRole can be read");
    let without = |rule: Rule| Rule { verbs: rule.verbs.into_iter().filter(|verb| verb != "patch").collect(), ..rule };
    bed.lab.grant("talos-ghcr", rules.into_iter().map(without).collect());
    let server = format!("https://{}:6443", bed.lab.node("cp-1").address());
    let least = bed.write("kubeconfig-least", &bed.lab.kubeconfig_for("talos-ghcr", &[], &server));
    let reader = bed.lab.dir().join("talosconfig-reader").display().to_string();
    let image = format!("{}/lab/none:1", bed.lab.registry().host());
    let replaced = [("--kubeconfig", least.as_str()), ("--talosconfig", &reader), ("--image", &image)];

    let poor = bed.product_with("plan", &replaced[..1], &["-o", "json"]).await.expect(0).json();
    let words = needs(&poor);
    assert!(words.contains("patch nodes") && words.contains("deploy/rbac/clusterrole.yaml grants it"), "{words}");
    let shown = bed.product_with("plan", &[replaced[2]], &[]).await.expect(0).stdout;
    assert!(shown.contains("Missing for a run: a credential that the registry takes: "), "{shown}");
    assert!(shown.contains("Gates of worker-1: open now"), "{shown}");
    let reads = bed.product_with("plan", &replaced[1..2], &[]).await;
    assert!(reads.stdout.contains("os:reader"), "{}", reads.stdout);
    assert_eq!(bed.writes(), 0);

    // The run would have said the same, later.
    let failed = bed.command_with("run", &replaced[..1], &[]);
    let failed = finish(failed).await.expect(1);
    assert!(failed.stderr.contains("patch nodes"), "{}", failed.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_names_the_gate_that_is_closed_now() {
    let bed = Bed::new(|options| options.workers = 2).await;
    bed.lab.objects().edit_node("worker-2", |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    });
    let shown = bed.product("plan", &["-n", "worker-1"]).await.expect(0).stdout;
    assert!(shown.contains("Gates of worker-1: closed now, a run waits up to 10m00s: "), "{shown}");
    assert!(shown.contains("worker-2"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k09_a_plan_says_which_nodes_a_flag_holds_back_and_that_something_differs() {
    let bed = Bed::proved(|options| options.workers = 2).await;
    bed.run(&["-n", "worker-1"]).await.expect(0);
    let back = ["-n", "worker-1", "--detailed-exitcode"];
    let plan = bed.product_with_old("plan", &back).await.expect(2).stdout;
    let row = plan.lines().find(|line| line.contains("worker-1")).expect("its row");
    assert!(row.contains("Drifted") && row.contains("--allow-older goes back to it"), "{plan}");
    assert!(plan.contains("1 blocked") && !plan.contains("Nothing to do"), "{plan}");
    let allowed = bed.product_with_old("plan", &[&back[..], &["--allow-older"]].concat()).await.expect(2).stdout;
    assert!(allowed.contains("Plan: 1 to reboot"), "{allowed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_a_plan_with_nothing_to_do_asks_for_no_rights_and_no_registry() {
    let bed = Bed::proved(|_| {}).await;
    let plan = bed.product_with_old("plan", &["-o", "json"]).await.expect(0).json();
    assert_eq!((&plan["needs"], &plan["gates"]), (&json!([]), &json!([])));
    let truth = bed.lab.truth();
    assert_eq!((truth.total("registry").reads, truth.total("kubernetes/").writes), (0, 0));
    assert!(truth.total("kubernetes/").reads <= 5, "{:?}", truth.total("kubernetes/").by_method);
}
