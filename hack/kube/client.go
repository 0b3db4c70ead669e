package main

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// newClientCommand returns the command of a program that runs with a client of the API server. Its flag `kubeconfig` names the server.
func newClientCommand(name, summary string, run func(context.Context, kubernetes.Interface) error) *cobra.Command {
	var kubeconfig string
	command := &cobra.Command{
		Use:          name,
		Short:        summary,
		SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			return run(context.Background(), client)
		},
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server")
	return command
}
