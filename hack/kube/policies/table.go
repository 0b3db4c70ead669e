// Package policies translates NetworkPolicies into packet filter rules of one node.
//
// Source of the rules: the documentation of networking.k8s.io/v1 NetworkPolicy. There is one difference: a pod's own policies also
// decide about its connections to its node, because the API server and DNS of the test cluster run there.
package policies

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Pod is a running pod with an address of its own.
type Pod struct {
	Namespace string
	Address   netip.Addr
	Labels    map[string]string
	Ports     []corev1.ContainerPort
}

// Cluster is the state that policies apply to. Namespaces has the labels of each namespace.
type Cluster struct {
	Pods       []Pod
	Namespaces map[string]map[string]string
	Policies   []*networkingv1.NetworkPolicy
}

// Table returns the table `security` in the format of iptables-restore. No other program of the node uses this table.
//
// The chains of a pod return for allowed connections and drop all others, so a connection needs consent in both directions.
func (c *Cluster) Table() string {
	var chains, jumps, rules []string
	for _, pod := range c.sorted() {
		for _, side := range []side{egress, ingress} {
			selecting := c.selecting(pod, side)
			if len(selecting) == 0 {
				continue
			}
			chain := side.chain + pod.Address.String()
			chains = append(chains, fmt.Sprintf(":%s - [0:0]", chain))
			for _, hook := range side.hooks {
				jumps = append(jumps, fmt.Sprintf("-A %s %s %s/32 -j %s", hook, side.own, pod.Address, chain))
			}
			rules = append(rules, fmt.Sprintf("-A %s %s %s/32 -j RETURN", chain, side.other, pod.Address))
			for _, match := range c.matches(pod, side, selecting) {
				rules = append(rules, fmt.Sprintf("-A %s%s -j RETURN", chain, match))
			}
			rules = append(rules, fmt.Sprintf("-A %s -j DROP", chain))
		}
	}
	lines := []string{"*security", ":INPUT ACCEPT [0:0]", ":FORWARD ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]"}
	lines = append(lines, chains...)
	for _, hook := range []string{"INPUT", "FORWARD"} {
		lines = append(lines, fmt.Sprintf("-A %s -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN", hook))
	}
	lines = append(lines, jumps...)
	lines = append(lines, rules...)
	return strings.Join(append(lines, "COMMIT", ""), "\n")
}

// side is a direction, as seen from the pod that a policy selects.
type side struct {
	kind       networkingv1.PolicyType
	chain      string
	own, other string
	// hooks are the chains that see a new connection of this direction. Connections from the node pass OUTPUT, where no policy applies.
	hooks []string
}

var (
	ingress = side{networkingv1.PolicyTypeIngress, "IN-", "-d", "-s", []string{"FORWARD"}}
	egress  = side{networkingv1.PolicyTypeEgress, "OUT-", "-s", "-d", []string{"INPUT", "FORWARD"}}
)

// rule is a rule of either direction.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func (s side) rules(policy *networkingv1.NetworkPolicy) []rule {
	var found []rule
	if s.kind == networkingv1.PolicyTypeIngress {
		for _, each := range policy.Spec.Ingress {
			found = append(found, rule{each.From, each.Ports})
		}
	} else {
		for _, each := range policy.Spec.Egress {
			found = append(found, rule{each.To, each.Ports})
		}
	}
	return found
}

func (c *Cluster) sorted() []Pod {
	return slices.SortedFunc(slices.Values(c.Pods), func(a, b Pod) int { return a.Address.Compare(b.Address) })
}

// selecting returns the policies that isolate the pod in a direction.
func (c *Cluster) selecting(pod Pod, side side) []*networkingv1.NetworkPolicy {
	var found []*networkingv1.NetworkPolicy
	for _, policy := range c.Policies {
		if policy.Namespace == pod.Namespace && slices.Contains(kinds(policy), side.kind) && selects(&policy.Spec.PodSelector, pod.Labels) {
			found = append(found, policy)
		}
	}
	return found
}

// kinds returns the directions of a policy. Without the field, a policy applies to ingress, and to egress if it has egress rules.
func kinds(policy *networkingv1.NetworkPolicy) []networkingv1.PolicyType {
	if len(policy.Spec.PolicyTypes) > 0 {
		return policy.Spec.PolicyTypes
	}
	if len(policy.Spec.Egress) > 0 {
		return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
}

// selects reports whether a selector of a policy selects labels. An invalid selector, which the API server refuses, selects nothing.
func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && compiled.Matches(labels.Set(set))
}

// matches returns the sorted and distinct matches of the connections that policies allow.
func (c *Cluster) matches(pod Pod, side side, policies []*networkingv1.NetworkPolicy) []string {
	var found []string
	for _, policy := range policies {
		for _, rule := range side.rules(policy) {
			found = append(found, c.allowed(pod, side, policy.Namespace, rule)...)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func (c *Cluster) allowed(pod Pod, side side, namespace string, rule rule) []string {
	var found []string
	add := func(address string, target []corev1.ContainerPort) {
		for _, port := range ports(rule.ports, target) {
			found = append(found, address+port)
		}
	}
	if len(rule.peers) == 0 {
		if side.kind == networkingv1.PolicyTypeIngress {
			add("", pod.Ports)
			return found
		}
		add("", nil)
		// A named port belongs to the destination, so the rule lists the port of each pod that has the name.
		rule.ports = slices.DeleteFunc(slices.Clone(rule.ports), func(port networkingv1.NetworkPolicyPort) bool {
			return port.Port == nil || port.Port.Type == intstr.Int
		})
		if len(rule.ports) == 0 {
			return found
		}
		for _, peer := range c.Pods {
			add(fmt.Sprintf(" %s %s/32", side.other, peer.Address), peer.Ports)
		}
		return found
	}
	for _, peer := range rule.peers {
		if peer.IPBlock != nil {
			var target []corev1.ContainerPort
			if side.kind == networkingv1.PolicyTypeIngress {
				target = pod.Ports
			}
			for _, prefix := range blocks(peer.IPBlock) {
				add(fmt.Sprintf(" %s %s", side.other, prefix), target)
			}
			continue
		}
		for _, candidate := range c.Pods {
			if !c.isPeer(peer, namespace, candidate) {
				continue
			}
			target := candidate.Ports
			if side.kind == networkingv1.PolicyTypeIngress {
				target = pod.Ports
			}
			add(fmt.Sprintf(" %s %s/32", side.other, candidate.Address), target)
		}
	}
	return found
}

// isPeer reports whether a pod is a peer. A peer without a namespaceSelector means the namespace of the policy.
func (c *Cluster) isPeer(peer networkingv1.NetworkPolicyPeer, namespace string, candidate Pod) bool {
	if peer.NamespaceSelector == nil {
		if candidate.Namespace != namespace {
			return false
		}
	} else if !selects(peer.NamespaceSelector, c.Namespaces[candidate.Namespace]) {
		return false
	}
	return peer.PodSelector == nil || selects(peer.PodSelector, candidate.Labels)
}

// ports returns a match for each port of a rule, and one that matches all if the rule has none. `target` has the named ports.
func ports(wanted []networkingv1.NetworkPolicyPort, target []corev1.ContainerPort) []string {
	if len(wanted) == 0 {
		return []string{""}
	}
	var found []string
	for _, each := range wanted {
		protocol := corev1.ProtocolTCP
		if each.Protocol != nil {
			protocol = *each.Protocol
		}
		match := " -p " + strings.ToLower(string(protocol))
		switch {
		case each.Port == nil:
			found = append(found, match)
		case each.Port.Type == intstr.Int && each.EndPort != nil:
			found = append(found, fmt.Sprintf("%s --dport %d:%d", match, each.Port.IntVal, *each.EndPort))
		case each.Port.Type == intstr.Int:
			found = append(found, fmt.Sprintf("%s --dport %d", match, each.Port.IntVal))
		default:
			for _, port := range target {
				if port.Name == each.Port.StrVal && (port.Protocol == protocol || port.Protocol == "" && protocol == corev1.ProtocolTCP) {
					found = append(found, fmt.Sprintf("%s --dport %d", match, port.ContainerPort))
				}
			}
		}
	}
	return found
}

// blocks returns the prefixes of an ipBlock without its exceptions. The node has no IPv6.
func blocks(block *networkingv1.IPBlock) []netip.Prefix {
	whole, err := netip.ParsePrefix(block.CIDR)
	if err != nil || !whole.Addr().Is4() {
		return nil
	}
	left := []netip.Prefix{whole.Masked()}
	for _, text := range block.Except {
		hole, err := netip.ParsePrefix(text)
		if err != nil {
			return nil
		}
		var kept []netip.Prefix
		for _, prefix := range left {
			kept = append(kept, without(prefix, hole.Masked())...)
		}
		left = kept
	}
	return left
}

// without returns the prefixes that cover all addresses of `prefix` except those of `hole`.
func without(prefix, hole netip.Prefix) []netip.Prefix {
	switch {
	case !prefix.Overlaps(hole):
		return []netip.Prefix{prefix}
	case hole.Bits() <= prefix.Bits():
		return nil
	}
	bytes := prefix.Addr().As4()
	lower := netip.PrefixFrom(prefix.Addr(), prefix.Bits()+1)
	bytes[prefix.Bits()/8] |= 0x80 >> (prefix.Bits() % 8)
	upper := netip.PrefixFrom(netip.AddrFrom4(bytes), prefix.Bits()+1)
	return append(without(lower, hole), without(upper, hole)...)
}
