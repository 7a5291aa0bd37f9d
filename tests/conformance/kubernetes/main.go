// The programs of a Kubernetes control plane, and kubectl, in one static binary: which one it is says the name that it
// is called by, as with busybox. build.sh makes the links. Each takes the flags that it always takes, so that a folder
// with the released programs does in the place of these (docs/conformance.md).
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl with every kind of kubeconfig
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		serve(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		serve(controllers.NewControllerManagerCommand())
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err) // says it as kubectl does, and exits
		}
	default:
		fmt.Fprintf(os.Stderr, "%s: call this etcd, kube-apiserver, kube-controller-manager or kubectl\n", name)
		os.Exit(2)
	}
}

func serve(command *cobra.Command) {
	os.Exit(cli.Run(command))
}
