// Another holder of a Lease, with client-go's own leader election (k8s.io/client-go/tools/leaderelection): what the
// controllers of every cluster use, and the rules that talos-ghcr has to get along with.
//
//	leader-election --kubeconfig F --namespace N --lease L --identity ID --duration 15s --renew-deadline 10s --retry 2s
//
// It says "leading", "lost" and "leader ID" on stdout, a line each, and gives the lease back on SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file")
	namespace := flag.String("namespace", "kube-system", "of the Lease")
	name := flag.String("lease", "talos-ghcr", "name of the Lease")
	identity := flag.String("identity", "client-go", "as the holder")
	duration := flag.Duration("duration", 15*time.Second, "of the lease")
	deadline := flag.Duration("renew-deadline", 10*time.Second, "after which it gives up leading")
	retry := flag.Duration("retry", 2*time.Second, "between attempts and renewals")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		fail(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		},
		LeaseDuration:   *duration,
		RenewDeadline:   *deadline,
		RetryPeriod:     *retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { fmt.Println("leading") },
			OnStoppedLeading: func() { fmt.Println("lost") },
			OnNewLeader:      func(leader string) { fmt.Println("leader", leader) },
		},
	})
	if err != nil {
		fail(err)
	}
	elector.Run(ctx)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "leader-election:", err)
	os.Exit(1)
}
