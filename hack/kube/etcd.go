package main

import (
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

// newEtcdCommand runs etcd of the version that the API server is built with: Debian's lacks what streaming lists need.
func newEtcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "etcd",
		Short:              "The API server's store",
		DisableFlagParsing: true,
		Run:                func(_ *cobra.Command, _ []string) { etcdmain.Main(os.Args) },
	}
}
