package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"firn.dev/hack/kube/policies"
)

const (
	applyRetry  = time.Second
	podPatience = 10 * time.Second
)

// agent keeps the packet filter of the node equal to the NetworkPolicies of the cluster. The rules stay while no agent runs.
type agent struct {
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister
	changed    chan struct{}

	mutex sync.Mutex
	// announced has the addresses of new pods. The kubelet reports them about a second after the containers have started.
	announced map[types.UID]netip.Addr
	applied   string
}

func newPolicyAgentCommand() *cobra.Command {
	var socket string
	command := newClientCommand("policy-agent", "Enforce NetworkPolicies on one node", func(ctx context.Context, client kubernetes.Interface) error {
		return runAgent(ctx, client, socket)
	})
	command.Flags().StringVar(&socket, "socket", "", "where the CNI plugin announces new pods")
	return command
}

func runAgent(ctx context.Context, client kubernetes.Interface, socket string) error {
	// Informers double their waiting time after each failure. While the API server starts, a short interval finds it sooner.
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := client.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, namespaces := factory.Core().V1().Pods(), factory.Core().V1().Namespaces()
	policies := factory.Networking().V1().NetworkPolicies()
	a := &agent{
		pods: pods.Lister(), namespaces: namespaces.Lister(), policies: policies.Lister(),
		changed: make(chan struct{}, 1), announced: map[types.UID]netip.Addr{},
	}
	wake := func(any) {
		select {
		case a.changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, object any) { wake(object) }, DeleteFunc: wake}
	for _, informer := range []cache.SharedIndexInformer{pods.Informer(), namespaces.Informer(), policies.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go a.serve(listener)
	for range a.changed {
		if err := a.apply(); err != nil {
			klog.ErrorS(err, "Rules not applied")
			time.AfterFunc(applyRetry, func() { wake(nil) })
		}
	}
	return nil
}

// apply replaces the rules of the node if they have changed. The kernel replaces a table as a whole.
func (a *agent) apply() error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	cluster, err := a.cluster()
	if err != nil {
		return err
	}
	table := cluster.Table()
	if table == a.applied {
		return nil
	}
	restore := exec.Command("iptables-restore", "--wait", "5")
	restore.Stdin = strings.NewReader(table)
	if output, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, output)
	}
	a.applied = table
	klog.InfoS("Rules applied", "pods", len(cluster.Pods), "policies", len(cluster.Policies), "lines", strings.Count(table, "\n"))
	return nil
}

func (a *agent) cluster() (*policies.Cluster, error) {
	pods, err := a.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	namespaces, err := a.namespaces.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	found, err := a.policies.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	cluster := &policies.Cluster{Namespaces: map[string]map[string]string{}, Policies: found}
	for _, namespace := range namespaces {
		cluster.Namespaces[namespace.Name] = namespace.Labels
	}
	known := map[types.UID]bool{}
	holders := map[netip.Addr]policies.Pod{}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, pod := range pods {
		known[pod.UID] = true
		// The address of a pod that ends may already belong to a newer pod.
		if address, ok := a.address(pod); ok {
			holders[address] = policies.Pod{
				Namespace: pod.Namespace, Address: address, Labels: pod.Labels, Ports: containerPorts(pod),
			}
		}
	}
	cluster.Pods = slices.Collect(maps.Values(holders))
	for uid := range a.announced {
		if !known[uid] {
			delete(a.announced, uid)
		}
	}
	return cluster, nil
}

// address returns the address of a pod that has one of its own. Another pod may have the address of a finished pod.
func (a *agent) address(pod *corev1.Pod) (netip.Addr, bool) {
	if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return netip.Addr{}, false
	}
	if address, ok := a.announced[pod.UID]; ok {
		return address, true
	}
	address, err := netip.ParseAddr(pod.Status.PodIP)
	return address, err == nil && address.Is4()
}

func containerPorts(pod *corev1.Pod) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		ports = append(ports, container.Ports...)
	}
	return ports
}

func (a *agent) serve(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			klog.ErrorS(err, "Accept failed")
			return
		}
		go func() {
			defer connection.Close()
			answer := "ok"
			if err := a.announce(connection); err != nil {
				answer = err.Error()
			}
			if _, err := connection.Write([]byte(answer)); err != nil {
				klog.ErrorS(err, "Answer failed")
			}
		}()
	}
}

// announce reads the uid and the address of a new pod, and applies its rules before the pod starts.
func (a *agent) announce(connection net.Conn) error {
	line, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		return err
	}
	words := strings.Fields(line)
	if len(words) != 2 {
		return fmt.Errorf("%q is not UID ADDRESS", line)
	}
	address, err := netip.ParseAddr(words[1])
	if err != nil {
		return err
	}
	uid := types.UID(words[0])
	err = wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, podPatience, true, func(context.Context) (bool, error) {
		return a.knows(uid)
	})
	if err != nil {
		return fmt.Errorf("no pod with uid %s: %w", uid, err)
	}
	a.mutex.Lock()
	a.announced[uid] = address
	a.mutex.Unlock()
	return a.apply()
}

func (a *agent) knows(uid types.UID) (bool, error) {
	pods, err := a.pods.List(labels.Everything())
	for _, pod := range pods {
		if pod.UID == uid {
			return true, err
		}
	}
	return false, err
}
