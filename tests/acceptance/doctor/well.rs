//! A cluster that is well, what it costs to look at it, and what people see: P10, P11.

use std::os::unix::fs::PermissionsExt as _;

use super::{checks, ill, next};
use crate::harness::Bed;
use crate::scene::two_workers;

/// Six nodes, the sum of all requests of one look. They grow with the nodes and with nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p10_a_cluster_that_is_well_costs_so_many_requests_and_not_one_that_changes_anything() {
    let bed = Bed::default().await;
    bed.lab.reset_counters();
    let doctor = bed.product("doctor", &["-o", "json"]).await.expect(0);
    assert_eq!(ill(&doctor), [], "{}", doctor.stdout);
    let truth = bed.lab.truth();
    let (talos, kubernetes) = (truth.total("talos/"), truth.total("kubernetes/"));
    assert_eq!((bed.writes(), truth.lease, truth.unexpected), (0, None, vec![]));
    // Two for each of three endpoints, nine for each node, the addresses and etcd's status of each control plane (who leads
    // goes last), two for each clock, and the gate of etcd: its members, its alarms, each voter.
    assert_eq!(talos.reads, 3 * 2 + 6 * 9 + 3 * 2 + 6 * 2 + 5, "{:?}", bed.lab.counters());
    // Twelve rights, the Nodes, the two Leases once in the inventory and once beside the fences, five lists of pods, and
    // of each API server its version; the two that join say that they are ready.
    assert_eq!(kubernetes.reads, 12 + 1 + 4 + 5 + 3 + 2, "{:?}", bed.lab.counters());
    let names = [
        "talosconfig",
        "kubeconfig",
        "kubernetes identity",
        "credential",
        "talos identity",
        "talos CA",
        "talos endpoint",
        "api server",
        "endpoint",
        "kubernetes rights",
        "registry",
        "nodes",
        "talos versions",
        "control planes",
        "etcd",
        "clocks",
        "reboot managers",
        "lease",
        "fences",
    ];
    let mut seen: Vec<String> = Vec::new();
    for check in doctor.json()["checks"].as_array().expect("checks") {
        let name = check["name"].as_str().unwrap_or_default().to_owned();
        if seen.last() != Some(&name) {
            seen.push(name);
        }
    }
    assert_eq!(seen, names, "in the order in which a run meets them");
    let servers = checks(&doctor, "api server");
    assert!(servers[0].1.contains("of cp-1: Kubernetes v1.") && servers[0].1.contains("kubeconfig's"), "{servers:?}");
    assert!(servers[1..].iter().all(|(_, detail)| detail.contains("joined")) && servers.len() == 3, "{servers:?}");
    assert_eq!(checks(&doctor, "clocks").len(), 1);
    assert!(checks(&doctor, "clocks")[0].1.starts_with("6 nodes: within "), "{}", doctor.stdout);
    assert!(checks(&doctor, "registry")[0].1.contains(&format!("may read {}", bed.lab.image())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_people_see_a_table_its_counts_and_what_to_type_next() {
    let bed = two_workers().await;
    let table = bed.product("doctor", &[]).await.expect(0).stdout;
    let detail = table.lines().next().and_then(|header| header.find("DETAIL")).expect("a header");
    let rows: Vec<_> = table.lines().take_while(|line| !line.is_empty()).collect();
    // All details stand in one column, and only what can be pasted or is one word is wider than the table.
    assert!(rows.iter().all(|row| row.get(detail - 1..detail) == Some(" ")), "{table}");
    let narrow = |row: &&&str| row.len() <= 120 || row[detail..].starts_with("-> ");
    assert_eq!(rows.iter().filter(narrow).count(), rows.len(), "{table}");
    // One control plane is a warning and no fault.
    assert!(table.contains(" ok, 1 warning, 0 faults.\n"), "{table}");
    assert!(table.contains("-> run --allow-control-plane-outage"), "{table}");
    assert!(
        table.ends_with("No fault. Read the warnings first; then, with the same flags: talos-ghcr plan\n"),
        "{table}"
    );
    let allowed = bed.product("doctor", &["--allow-control-plane-outage", "-o", "json"]).await.expect(0);
    assert_eq!(ill(&allowed), [], "{}", allowed.stdout);

    // The document says the same as YAML, and with a fault the exit code is 1.
    let yaml = bed.product("doctor", &["-o", "yaml"]).await.expect(0).stdout;
    assert!(yaml.starts_with("schemaVersion: 1\nkind: Doctor\nchecks:\n- name: talosconfig\n  health: ok\n"), "{yaml}");
    let open = bed.lab.dir().join("kubeconfig");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let commands = ["--gate-command", "exit 0", "--after-command", "case x in", "-o", "json"];
    let doctor = bed.product("doctor", &commands).await.expect(1);
    let expected = [("kubeconfig", "warning"), ("commands", "fault"), ("control planes", "warning")];
    assert_eq!(ill(&doctor), expected.map(|(name, health)| (name.to_owned(), health.to_owned())));
    assert_eq!(next(&doctor, "kubeconfig"), format!("chmod 600 {}", open.display()));
    let said = checks(&doctor, "commands");
    assert!(
        said[0].1.starts_with("--gate-command: sh can read") && said[1].1.contains("--after-command: sh cannot"),
        "{said:?}"
    );
    // A flag that is wrong is a mistake in what was typed, not in the cluster.
    bed.product("doctor", &["--image", "docker.io/x:1"]).await.expect(64);
}
