package policies

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// The pods of all cases: a database and a client in `shop`, and a tenant and DNS elsewhere.
func pods() []Pod {
	pod := func(namespace, name, address string, ports ...corev1.ContainerPort) Pod {
		return Pod{namespace, netip.MustParseAddr(address), map[string]string{"app": name}, ports}
	}
	return []Pod{
		pod("shop", "database", "10.244.0.2", corev1.ContainerPort{Name: "sql", ContainerPort: 5432, Protocol: corev1.ProtocolTCP}),
		pod("shop", "client", "10.244.0.3"),
		pod("tenant", "client", "10.244.0.4"),
		pod("system", "dns", "10.244.0.5",
			corev1.ContainerPort{Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP},
			corev1.ContainerPort{Name: "dns-tcp", ContainerPort: 53, Protocol: corev1.ProtocolTCP}),
	}
}

// chains returns the rules of each chain, without those that every chain has.
func chains(t *testing.T, specs ...string) map[string][]string {
	t.Helper()
	cluster := Cluster{Pods: pods(), Namespaces: map[string]map[string]string{"shop": {"team": "a"}, "tenant": {"team": "b"}, "system": {}}}
	for _, spec := range specs {
		policy := &networkingv1.NetworkPolicy{}
		policy.Namespace = "shop"
		if err := json.Unmarshal([]byte(spec), &policy.Spec); err != nil {
			t.Fatal(err)
		}
		cluster.Policies = append(cluster.Policies, policy)
	}
	found := map[string][]string{}
	for _, line := range strings.Split(cluster.Table(), "\n") {
		if chain, isChain := strings.CutPrefix(line, ":"); isChain && strings.HasSuffix(chain, " - [0:0]") {
			found[strings.TrimSuffix(chain, " - [0:0]")] = []string{}
		}
		words := strings.SplitN(line, " ", 3)
		if rules, ok := found[words[max(0, len(words)-2)]]; ok && words[0] == "-A" {
			found[words[1]] = append(rules, words[2])
		}
	}
	for chain, rules := range found {
		itself := "-s "
		if strings.HasPrefix(chain, "OUT-") {
			itself = "-d "
		}
		_, address, _ := strings.Cut(chain, "-")
		if len(rules) < 2 || rules[0] != itself+address+"/32 -j RETURN" || rules[len(rules)-1] != "-j DROP" {
			t.Fatalf("%s neither begins with the pod itself nor ends with DROP: %q", chain, rules)
		}
		found[chain] = rules[1 : len(rules)-1]
	}
	return found
}

func TestTable(t *testing.T) {
	const database = `"podSelector": {"matchLabels": {"app": "database"}}`
	const from = `{` + database + `, "ingress": [{"from": [%]}]}`
	cases := []struct {
		name  string
		specs []string
		want  map[string][]string
	}{
		{"no policy isolates nothing", nil, map[string][]string{}},
		{"a policy selects pods of its namespace only", []string{`{"podSelector": {"matchLabels": {"app": "client"}}}`}, map[string][]string{"IN-10.244.0.3": {}}},
		{"an empty selector selects all pods of the namespace", []string{`{"podSelector": {}, "policyTypes": ["Egress"]}`},
			map[string][]string{"OUT-10.244.0.2": {}, "OUT-10.244.0.3": {}}},
		{"egress rules imply the direction", []string{`{` + database + `, "egress": [{}]}`}, map[string][]string{"IN-10.244.0.2": {}, "OUT-10.244.0.2": {"-j RETURN"}}},
		{"pods of the own namespace", []string{strings.Replace(from, "%", `{"podSelector": {"matchLabels": {"app": "client"}}}`, 1)},
			map[string][]string{"IN-10.244.0.2": {"-s 10.244.0.3/32 -j RETURN"}}},
		{"all pods of namespaces", []string{strings.Replace(from, "%", `{"namespaceSelector": {"matchLabels": {"team": "b"}}}`, 1)},
			map[string][]string{"IN-10.244.0.2": {"-s 10.244.0.4/32 -j RETURN"}}},
		{"pods in namespaces", []string{strings.Replace(from, "%", `{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "client"}}}`, 1)},
			map[string][]string{"IN-10.244.0.2": {"-s 10.244.0.3/32 -j RETURN", "-s 10.244.0.4/32 -j RETURN"}}},
		{"a peer that does not exist", []string{strings.Replace(from, "%", `{"podSelector": {"matchLabels": {"app": "none"}}}`, 1)}, map[string][]string{"IN-10.244.0.2": {}}},
		{"addresses with exceptions", []string{strings.Replace(from, "%", `{"ipBlock": {"cidr": "10.0.0.0/30", "except": ["10.0.0.1/32"]}}`, 1)},
			map[string][]string{"IN-10.244.0.2": {"-s 10.0.0.0/32 -j RETURN", "-s 10.0.0.2/31 -j RETURN"}}},
		{"addresses of IPv6", []string{strings.Replace(from, "%", `{"ipBlock": {"cidr": "fd00::/8"}}`, 1)}, map[string][]string{"IN-10.244.0.2": {}}},
		{"numbers, ranges and protocols", []string{`{` + database + `, "ingress": [{"ports": [{"port": 80}, {"port": 90, "endPort": 99}, {"protocol": "UDP"}]}]}`},
			map[string][]string{"IN-10.244.0.2": {"-p tcp --dport 80 -j RETURN", "-p tcp --dport 90:99 -j RETURN", "-p udp -j RETURN"}}},
		{"a named port of the selected pod", []string{`{` + database + `, "ingress": [{"ports": [{"port": "sql"}, {"port": "other"}, {"port": "sql", "protocol": "UDP"}]}]}`},
			map[string][]string{"IN-10.244.0.2": {"-p tcp --dport 5432 -j RETURN"}}},
		{"a named port of each destination", []string{`{"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"], "egress": [
			{"to": [{"namespaceSelector": {}}], "ports": [{"port": "sql"}, {"port": "dns", "protocol": "UDP"}]}]}`},
			map[string][]string{"OUT-10.244.0.3": {"-d 10.244.0.2/32 -p tcp --dport 5432 -j RETURN", "-d 10.244.0.5/32 -p udp --dport 53 -j RETURN"}}},
		{"a named port of any destination, and a number", []string{`{"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"], "egress": [
			{"ports": [{"port": "dns-tcp"}, {"port": 443}]}]}`},
			map[string][]string{"OUT-10.244.0.3": {"-d 10.244.0.5/32 -p tcp --dport 53 -j RETURN", "-p tcp --dport 443 -j RETURN"}}},
		{"policies add up, and a rule counts once", []string{
			`{` + database + `}`,
			strings.Replace(from, "%", `{"podSelector": {}}`, 1),
			strings.Replace(from, "%", `{"podSelector": {"matchLabels": {"app": "client"}}}`, 1),
		}, map[string][]string{"IN-10.244.0.2": {"-s 10.244.0.2/32 -j RETURN", "-s 10.244.0.3/32 -j RETURN"}}},
	}
	for _, each := range cases {
		t.Run(each.name, func(t *testing.T) {
			got := chains(t, each.specs...)
			if len(got) != len(each.want) {
				t.Fatalf("chains %q, want %q", got, each.want)
			}
			for chain, rules := range each.want {
				if !slices.Equal(got[chain], rules) {
					t.Errorf("%s has %q, want %q", chain, got[chain], rules)
				}
			}
		})
	}
}

func TestHooks(t *testing.T) {
	policy := &networkingv1.NetworkPolicy{}
	policy.Namespace = "shop"
	policy.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	cluster := Cluster{Pods: pods()[:1], Policies: []*networkingv1.NetworkPolicy{policy}}
	want := `*security
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:OUT-10.244.0.2 - [0:0]
:IN-10.244.0.2 - [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A INPUT -s 10.244.0.2/32 -j OUT-10.244.0.2
-A FORWARD -s 10.244.0.2/32 -j OUT-10.244.0.2
-A FORWARD -d 10.244.0.2/32 -j IN-10.244.0.2
-A OUT-10.244.0.2 -d 10.244.0.2/32 -j RETURN
-A OUT-10.244.0.2 -j DROP
-A IN-10.244.0.2 -s 10.244.0.2/32 -j RETURN
-A IN-10.244.0.2 -j DROP
COMMIT
`
	if got := cluster.Table(); got != want {
		t.Errorf("table:\n%s\nwant:\n%s", got, want)
	}
}

func TestBlocksCoverAllAddressesButTheExceptions(t *testing.T) {
	block := &networkingv1.IPBlock{CIDR: "10.1.2.0/24", Except: []string{"10.1.2.7/32", "10.1.2.64/26", "10.9.0.0/16"}}
	got := blocks(block)
	for last := range 256 {
		address := netip.AddrFrom4([4]byte{10, 1, 2, byte(last)})
		covered := 0
		for _, prefix := range got {
			if prefix.Contains(address) {
				covered++
			}
		}
		want := 1
		if last == 7 || last >= 64 && last < 128 {
			want = 0
		}
		if covered != want {
			t.Errorf("%s is in %d prefixes, want %d", address, covered, want)
		}
	}
	if rest := blocks(&networkingv1.IPBlock{CIDR: "10.1.2.0/24", Except: []string{"10.1.0.0/16"}}); len(rest) != 0 {
		t.Errorf("an exception that covers the block leaves %v", rest)
	}
}
