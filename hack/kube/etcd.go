package main

import (
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

// newEtcdCommand runs etcd in the version with which the API server is built. Debian's version does not support streaming lists.
func newEtcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "etcd",
		Short:              "The API server's store",
		DisableFlagParsing: true,
		Run:                func(_ *cobra.Command, _ []string) { etcdmain.Main(os.Args) },
	}
}
