// Command coredns is CoreDNS with the few plugins that the DNS of a one-node test cluster needs.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// A query passes the plugins in this order. A Corefile can name only these plugins.
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "template", "kubernetes"}
	coremain.Run()
}
