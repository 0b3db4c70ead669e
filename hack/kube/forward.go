package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// newForwardCommand forwards connections from listening sockets outside the cluster's network namespace to addresses inside it.
//
// A socket stays in the namespace in which it was opened. The parent therefore opens the loopback ports first and passes them as file
// descriptors. The cluster needs no interface, route or packet filter rule outside its namespace.
func newForwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:          "forward FD=HOST:PORT...",
		Short:        "Forward inherited listening sockets to addresses of this network namespace",
		Args:         cobra.MinimumNArgs(1),
		SilenceUsage: true,
		RunE: func(command *cobra.Command, pairs []string) error {
			failed := make(chan error)
			for _, pair := range pairs {
				descriptor, target, found := strings.Cut(pair, "=")
				number, err := strconv.Atoi(descriptor)
				if !found || err != nil {
					return fmt.Errorf("%q is not FD=HOST:PORT", pair)
				}
				listener, err := net.FileListener(os.NewFile(uintptr(number), pair))
				if err != nil {
					return fmt.Errorf("descriptor %d is not a listening socket: %w", number, err)
				}
				go func() { failed <- accept(listener, target) }()
			}
			return <-failed
		},
	}
}

func accept(listener net.Listener, target string) error {
	for {
		outside, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept for %s: %w", target, err)
		}
		go join(outside.(*net.TCPConn), target)
	}
}

// join copies data in both directions until both sides have closed theirs. It forwards the end of data of one side and keeps the other open.
func join(outside *net.TCPConn, target string) {
	defer outside.Close()
	connection, err := net.DialTimeout("tcp", target, 10*time.Second)
	if err != nil {
		klog.V(2).InfoS("Target refused", "target", target, "err", err)
		return
	}
	inside := connection.(*net.TCPConn)
	defer inside.Close()
	done := make(chan struct{}, 2)
	copyHalf := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			to.Close()
			from.Close()
		}
		to.CloseWrite()
		done <- struct{}{}
	}
	go copyHalf(inside, outside)
	go copyHalf(outside, inside)
	<-done
	<-done
}
