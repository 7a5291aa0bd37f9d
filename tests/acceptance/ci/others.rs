//! Holders of other Leases than ours: the old script, and a run whose fence is left.

use std::sync::Arc;

use lab::kube::store::micros;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l27_the_old_scripts_holder_counts_as_dead_by_its_run() {
    let scene = Scene::new().await;
    let legacy = ("flux-system", "ghcr-auth-refresh");
    // The script leaves no evidence: its identity names the run, and the repository is ours.
    scene.hold(legacy, FIRST, None);
    scene.github.put(RUN, 1, vec![job("deploy", "runner-1", "in_progress")]);
    let said = told(finish(scene.prove(&[])).await, 3);
    assert!(said.contains("flux-system/ghcr-auth-refresh") && said.contains("is in progress"), "{said}");
    assert_eq!(scene.bed.writes(), 0);
    scene.github.put(RUN, 1, vec![job("deploy", "runner-1", "completed")]);
    let said = told(finish(scene.prove(&[])).await, 0);
    assert!(said.contains("all jobs of run 17123456789, attempt 1 have completed"), "{said}");
    assert!(scene.is_proved());
    let left = scene.bed.lab.objects().get(Kind::Lease, legacy.0, legacy.1).expect("it stays");
    assert_eq!(left["spec"]["holderIdentity"], FIRST, "its Lease is its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l31_a_fence_under_another_lease_is_adopted_when_its_holders_job_has_completed() {
    let scene = Scene::new().await;
    let others = ("platform", "another-rollout");
    scene.hold(others, FIRST, Some(evidence(FIRST, 1)));
    let fence = put_fence(&scene.bed, others);
    scene.github.put(RUN, 1, vec![job("deploy", "runner-1", "in_progress")]);
    told(finish(scene.prove(&[])).await, 1);
    assert_eq!(scene.bed.truth_of("worker-1").fence.as_ref(), Some(&fence), "untouched while it runs");
    scene.github.put(RUN, 1, vec![job("deploy", "runner-1", "completed")]);
    // GitHub has lost its runner: the process lives, and renews.
    let lab = Arc::clone(&scene.bed.lab);
    let renewing = tokio::spawn(async move {
        loop {
            let mut lease = Value::clone(&lab.objects().get(Kind::Lease, others.0, others.1).expect("it is there"));
            lease["spec"]["renewTime"] = json!(micros(Clock::system().utc()));
            lab.objects().put_lease(lease);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let said = told(finish(scene.prove(&[])).await, 1);
    assert!(said.contains(FIRST), "{said}");
    assert_eq!(scene.bed.truth_of("worker-1").fence, Some(fence), "untouched while it renews");
    renewing.abort();
    let _ = renewing.await;
    told(finish(scene.prove(&[])).await, 0);
    let node = scene.bed.truth_of("worker-1");
    assert_eq!((node.fence, node.cordoned), (None, false));
    assert!(scene.is_proved() && !lease_is_held(&scene.bed));
}
