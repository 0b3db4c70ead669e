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

// newForwardCommand joins listening sockets that were opened outside the cluster's network namespace with addresses inside it.
//
// A socket belongs for ever to the namespace in which it was made, so the parent opens the loopback ports first and hands them down as
// file descriptors; no interface, route or packet filter rule outside the namespace is needed.
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

// join copies both ways until both sides have said that they are done; one side's end of data is passed on, not taken for a hang-up.
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
