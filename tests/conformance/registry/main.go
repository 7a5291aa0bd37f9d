// The registry of the CNCF project distribution, as its own cmd/registry builds it, with what the tests need of it:
// token and htpasswd login, and storage in memory.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"
)

func main() {
	// It would look for a collector on this machine.
	if err := os.Setenv("OTEL_TRACES_EXPORTER", "none"); err != nil {
		panic(err)
	}
	registry.RootCmd.AddCommand(&cobra.Command{
		Use:   "hash",
		Short: "`hash` reads a password from stdin and writes what an htpasswd file has in its place",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			password, err := io.ReadAll(os.Stdin)
			if err != nil {
				return err
			}
			// The least cost: the passwords are random and live for a test.
			hash, err := bcrypt.GenerateFromPassword(password, bcrypt.MinCost)
			if err != nil {
				return err
			}
			_, err = fmt.Println(string(hash))
			return err
		},
	})
	if err := registry.RootCmd.Execute(); err != nil {
		os.Exit(1)
	}
}
