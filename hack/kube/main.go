// Command kube has all Kubernetes programs of the local test cluster in one file. argv[0] or the first argument selects the program.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func commands() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		// The kubelet installs its own signal handler, and panics if it gets a signal context.
		"kubelet":           func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy":        proxy.NewProxyCommand,
		"kubectl":           kubectl.NewDefaultKubectlCommand,
		"local-provisioner": newProvisionerCommand,
		"policy-agent":      newPolicyAgentCommand,
		"forward":           newForwardCommand,
		"etcd":              newEtcdCommand,
	}
}

func main() {
	name := filepath.Base(os.Args[0])
	known := commands()
	if _, ok := known[name]; !ok && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	build, ok := known[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "kube: %q is not one of %s\n", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(build()))
}
