//! How the API servers and Talos are reached while nodes go away: O03, O05, O07, O08, O15.

use std::time::Duration;

use futures::FutureExt as _;
use lab::talos::log::Entry;
use serde_json::{Value, json};

use crate::harness::{Bed, Ended, eventually, finish, lease_duration};
use crate::scene::{only_stale_of, requests, side_by_side};

/// A port that no control plane serves at.
const TUNNEL: u16 = 16443;

/// A kubeconfig of the administrator for another server.
fn kubeconfig(bed: &Bed, server: &str) -> String {
    bed.write("kubeconfig-front", &bed.lab.kubeconfig_for("kubernetes-admin", &["system:masters"], server))
}

/// The endpoint as `plan` shows it.
async fn planned(bed: &Bed, kubeconfig: &str) -> Value {
    bed.product_with("plan", &[("--kubeconfig", kubeconfig)], &["-o", "json"]).await.expect(0).json()["endpoint"]
        .clone()
}

/// `run` with the scaled lease and another kubeconfig.
async fn run_with(bed: &Bed, kubeconfig: &str, more: &[&str]) -> Ended {
    let mut roll = bed.command_with("run", &[("--kubeconfig", kubeconfig)], more);
    roll.args(["--lease-duration", lease_duration()]);
    finish(roll).await
}

/// From the reboot call of a node until its fence is taken away.
fn while_away(bed: &Bed, node: &str) -> Vec<Entry> {
    let (from, until) = (requests(bed, "Reboot", node)[0].seq, requests(bed, "PATCH nodes", node));
    let until = until.iter().map(|entry| entry.seq).max().expect("it was given back");
    bed.lab.log().all().into_iter().filter(|entry| entry.seq > from && entry.seq < until).collect()
}

/// Behind an address that is no node's, the certificate tells which control plane answers, and a load balancer shows
/// itself by having several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o03_behind_a_tunnel_or_a_load_balancer_the_certificate_tells() {
    let bed = Bed::new(|options| options.workers = 1).await;
    let front = bed.lab.front(TUNNEL, &["cp-2"]).expect("the port is free");
    let kubeconfig = kubeconfig(&bed, &front.url());
    let by_certificate = format!(
        "the certificate that answers at {}:{TUNNEL} is that of cp-2 (it names cp-2 and {})",
        front.ip(),
        bed.lab.node("cp-2").address()
    );
    let tunnel = planned(&bed, &kubeconfig).await;
    assert_eq!((&tunnel["node"], &tunnel["rule"]), (&json!("cp-2"), &json!(by_certificate)));

    bed.lab.turn_front(&front, &["cp-1", "cp-2", "cp-3"]);
    let balancer = planned(&bed, &kubeconfig).await;
    let rule = balancer["rule"].as_str().expect("a rule is a text");
    assert!(balancer["node"].is_null() && rule.ends_with("(a load balancer): no single node"), "{balancer}");
    assert!(["cp-1", "cp-2", "cp-3"].iter().all(|name| rule.contains(name)), "{balancer}");

    assert_eq!(bed.writes(), 0);
}

/// The control planes serve at another port than the tunnel: they join the set there all the same, and each is waited for
/// at its own address after its reboot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o03_s4_the_control_plane_behind_a_tunnel_goes_last() {
    let bed = Bed::new(|options| options.workers = 2).await;
    let front = bed.lab.front(TUNNEL, &["cp-2"]).expect("the port is free");
    bed.lab.talos().set_etcd_leader("cp-1");
    let done = run_with(&bed, &kubeconfig(&bed, &front.url()), &[]).await.expect(0);
    bed.assert_done();
    assert_eq!(bed.lab.truth().boot_order, ["worker-1", "worker-2", "cp-3", "cp-1", "cp-2"], "{}", done.stderr);
    assert!(!done.stderr.contains("is not used") && !done.stderr.contains("cannot be reached"), "{}", done.stderr);
}

/// The kubeconfig's own server is away: one that was named is asked to prove itself at the first contact, and one that was
/// not is not looked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o05_a_further_api_server_is_used_where_the_kubeconfigs_does_not_answer_at_all() {
    let bed = Bed::new(|options| options.workers = 1).await;
    let dead = kubeconfig(&bed, &format!("https://{}:1", bed.lab.node("cp-1").address()));
    let further = format!("{}:6443", bed.lab.node("cp-2").address());
    let replaced = [("--kubeconfig", dead.as_str())];
    let away = bed.product_with("verify", &replaced, &[]).await.expect(1);
    assert!(away.stderr.contains("no Kubernetes API server answered") && away.stdout.is_empty(), "{}", away.stderr);
    assert!(away.stderr.contains("Connection refused") && !away.stderr.contains("os error"), "{}", away.stderr);
    let seen = bed.product_with("verify", &replaced, &["--kube-server", &further, "-o", "json"]).await.expect(2).json();
    assert_eq!(seen["nodes"].as_array().map(Vec::len), Some(4));
    assert_eq!(bed.writes(), 0);
}

/// Only the load balancer is let in to the API servers: none of their own addresses joins the set, and none can say that it
/// is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o03_r17_control_planes_that_only_a_load_balancer_reaches() {
    let bed = only_stale_of(&["cp-2"], |_| {}).await;
    let front = bed.lab.front(TUNNEL, &["cp-1", "cp-2", "cp-3"]).expect("the port is free");
    for name in ["cp-1", "cp-2", "cp-3"] {
        bed.lab.server(name).expect("it has an API server").only_from(Some(front.ip()));
    }
    let done = run_with(&bed, &kubeconfig(&bed, &front.url()), &[]).await.expect(0);
    bed.assert_done();
    assert_eq!(bed.truth_of("cp-2").boots, 1);
    assert_eq!(done.stderr.matches("is not used").count(), 3, "{}", done.stderr);
    // Half of the lease's duration: what its API server would say is awaited.
    let half = lease_duration().trim_end_matches('s').parse::<u32>().expect("seconds") / 2;
    let words = format!("cannot be reached from here; its machine was ready for {half}s");
    assert!(done.stderr.contains(&words), "{words}: {}", done.stderr);
}

/// Which API servers the lease was renewed at.
fn renewals(entries: &[Entry]) -> Vec<String> {
    let renewals = entries.iter().filter(|entry| entry.method == "PATCH leases");
    renewals.map(|entry| entry.server.clone()).collect()
}

/// The endpoint node is away for longer than the lease's deadline, and it never lapses.
async fn renewed_elsewhere(behind_firewall: bool) {
    let bed = only_stale_of(&["cp-1"], |options| options.reboot_time = Duration::from_secs(5)).await;
    let front = bed.lab.front(TUNNEL, &["cp-2"]).expect("the port is free");
    let (further, wrong) = (format!("{}:{TUNNEL}", front.ip()), format!("{}:1", front.ip()));
    let mut more = vec![];
    if behind_firewall {
        // The others' own addresses are of no use; what the flag names is.
        for other in ["cp-2", "cp-3"] {
            bed.lab.server(other).expect("it has an API server").only_from(Some(front.ip()));
        }
        more.extend(["--kube-server", &further, "--kube-server", &wrong]);
    }
    let done = bed.run(&more).await.expect(0);
    bed.assert_done();
    let away = while_away(&bed, "cp-1");
    // It serves until its shutdown is over; the time between two requests that is the longest is the darkness.
    let own: Vec<_> = (0..away.len()).filter(|index| away[*index].server == "kubernetes/cp-1").collect();
    let dark = own.windows(2).max_by_key(|pair| away[pair[1]].at.duration_since(away[pair[0]].at));
    let dark = dark.expect("it serves before and after");
    let renewals = renewals(&away[dark[0] + 1..dark[1]]);
    assert!(renewals.len() >= 2, "renewed {renewals:?}: {}", done.stderr);
    let allowed: &[&str] = if behind_firewall { &["kubernetes/cp-2"] } else { &["kubernetes/cp-2", "kubernetes/cp-3"] };
    assert!(renewals.iter().all(|server| allowed.contains(&server.as_str())), "{renewals:?}");
    assert!(!done.stderr.contains("lapse"), "{}", done.stderr);
    let dropped = done.stderr.lines().filter(|line| line.contains("is not used")).collect::<Vec<_>>().join("\n");
    if behind_firewall {
        let others = ["cp-2", "cp-3"].map(|name| format!("{}:6443", bed.lab.node(name).address()));
        assert!(others.iter().chain([&wrong]).all(|address| dropped.contains(&**address)), "{}", done.stderr);
        assert!(!dropped.contains(&further), "{dropped}");
    } else {
        assert_eq!(dropped, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o05_the_lease_is_renewed_elsewhere_while_the_endpoint_node_is_away() {
    side_by_side(vec![
        ("at the control planes' own addresses".to_owned(), renewed_elsewhere(false).boxed()),
        ("at a further address that was given".to_owned(), renewed_elsewhere(true).boxed()),
    ])
    .await;
}

/// Of two Talos endpoints one is the node that is rebooted: nothing goes through it until it is back.
async fn another_route(route: &'static str) {
    let bed = only_stale_of(&["cp-1"], |options| options.reboot_time = Duration::from_secs(2)).await;
    let endpoints = ["cp-1", "cp-2"].map(|name| bed.lab.node(name).address().to_string()).join(",");
    bed.run(&["--endpoints", &endpoints, "--route", route]).await.expect(0);
    bed.assert_done();
    let away = while_away(&bed, "cp-1");
    let asked: Vec<_> = away.iter().filter(|entry| entry.server.starts_with("talos/")).collect();
    let of_cp_1 = |entry: &Entry| entry.target.split(' ').next() == Some("cp-1");
    assert!(asked.iter().any(|entry| entry.server == "talos/cp-2" && of_cp_1(entry)), "{asked:#?}");
    // At its own address it is asked about itself, unless that may not be dialled; as a proxy it is not used.
    let through: Vec<_> =
        asked.iter().filter(|entry| entry.server == "talos/cp-1" && (route == "proxy" || !of_cp_1(entry))).collect();
    assert!(through.is_empty(), "{through:#?}");
    assert_eq!(requests(&bed, "Reboot", "cp-1")[0].server, "talos/cp-2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o07_no_route_leads_through_the_node_that_is_rebooted() {
    let cases = ["proxy", "auto"].map(|route| (format!("--route {route}"), another_route(route).boxed()));
    side_by_side(cases.into()).await;
}

/// The node that is rebooted is the only Talos endpoint.
async fn the_only_endpoint(route: &'static str) {
    let bed = only_stale_of(&["cp-1"], |options| options.reboot_time = Duration::from_secs(2)).await;
    let endpoint = bed.lab.node("cp-1").address().to_string();
    bed.run(&["--endpoints", &endpoint, "--route", route]).await.expect(0);
    bed.assert_done();
    assert_eq!(bed.truth_of("cp-1").boots, 1);
    let asked = requests(&bed, "Reboot", "cp-1");
    assert_eq!((asked.len(), asked[0].server.as_str()), (1, "talos/cp-1"));
    // All that was asked of Talos came in there, for nothing else was named.
    let log = bed.lab.log().all();
    let elsewhere = |entry: &&Entry| entry.server.starts_with("talos/") && entry.server != "talos/cp-1";
    assert_eq!(log.iter().filter(|entry| entry.seq > asked[0].seq).find(elsewhere), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o08_the_only_talos_endpoint_is_rebooted_and_waited_for() {
    let cases = ["proxy", "auto"].map(|route| (format!("--route {route}"), the_only_endpoint(route).boxed()));
    side_by_side(cases.into()).await;
}

/// The holder of the VIP lost its power. Discovery lists the VIP under it for over a minute (talos-captures point 19),
/// also when it is back, while another control plane holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o15_a_vip_that_discovery_lists_under_its_dead_holder_is_found_where_it_is() {
    let bed = Bed::new(|options| options.workers = 2).await;
    let front = bed.lab.front(6443, &["cp-3"]).expect("the port is free");
    let (vip, kubeconfig) = (front.ip(), kubeconfig(&bed, &front.url()));
    bed.lab.node("cp-3").set_vip(Some(vip));
    for node in bed.lab.talos().nodes() {
        node.discover_vip("cp-3", vip);
    }
    let held = planned(&bed, &kubeconfig).await;
    assert_eq!(
        (&held["node"], &held["rule"]),
        (&json!("cp-3"), &json!(format!("{vip} is a further address (a VIP?) of cp-3 by Talos")))
    );

    bed.lab.node("cp-3").stop();
    bed.lab.node("cp-3").set_vip(None);
    bed.lab.turn_front(&front, &["cp-2"]);
    // No control plane that answers says that it has the address yet: the certificate tells.
    let moving = planned(&bed, &kubeconfig).await;
    assert_eq!(moving["node"], json!("cp-2"), "{moving}");
    bed.lab.node("cp-2").set_vip(Some(vip));
    let moved = planned(&bed, &kubeconfig).await;
    assert_eq!(
        (&moved["node"], &moved["rule"]),
        (&json!("cp-2"), &json!(format!("{vip} is a further address (a VIP?) of cp-2 by Talos")))
    );

    bed.lab.node("cp-3").start_again();
    eventually("cp-3 is back", || bed.is_up("cp-3") && bed.lab.server_is_ready("cp-3")).await;
    bed.lab.talos().set_etcd_leader("cp-1");
    let done = run_with(&bed, &kubeconfig, &[]).await.expect(0);
    bed.assert_done();
    let order = bed.lab.truth().boot_order.split_off(1);
    assert!(!bed.lab.log().all().iter().any(|entry| entry.target.contains("Members.cluster")), "nobody asks discovery");
    assert_eq!(order, ["worker-1", "worker-2", "cp-3", "cp-1", "cp-2"], "{}", done.stderr);
}
