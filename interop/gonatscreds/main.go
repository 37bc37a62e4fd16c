// Makes an operator of NATS, its accounts and credentials files, as `nsc` does: for the suite `cluster-security`.
//
//	gonatscreds FOLDER   writes FOLDER/operator.conf (to be included by a server's configuration), FOLDER/node.creds and
//	                     FOLDER/stranger.creds, whose account the server does not know
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

// account returns the account's key, its public key and its JWT.
func account(operator nkeys.KeyPair, name string, isStoring bool) (nkeys.KeyPair, string, string) {
	key := must(nkeys.CreateAccount())
	public := must(key.PublicKey())
	claims := jwt.NewAccountClaims(public)
	claims.Name = name
	if isStoring {
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
			MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
		}
	}
	return key, public, must(claims.Encode(operator))
}

func credentials(path string, account nkeys.KeyPair, name string) {
	key := must(nkeys.CreateUser())
	claims := jwt.NewUserClaims(must(key.PublicKey()))
	claims.Name = name
	token := must(claims.Encode(account))
	file := must(jwt.FormatUserConfig(token, must(key.Seed())))
	must(0, os.WriteFile(path, file, 0o600))
}

func main() {
	folder := os.Args[1]
	operator := must(nkeys.CreateOperator())
	claims := jwt.NewOperatorClaims(must(operator.PublicKey()))
	claims.Name = "operator"
	_, systemPublic, system := account(operator, "system", false)
	key, public, nodes := account(operator, "nodes", true)
	stranger, _, _ := account(operator, "stranger", true)
	claims.SystemAccount = systemPublic
	config := fmt.Sprintf(
		"operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n  %s: %s\n  %s: %s\n}\n",
		must(claims.Encode(operator)), systemPublic, systemPublic, system, public, nodes,
	)
	must(0, os.WriteFile(filepath.Join(folder, "operator.conf"), []byte(config), 0o600))
	credentials(filepath.Join(folder, "node.creds"), key, "node")
	credentials(filepath.Join(folder, "stranger.creds"), stranger, "stranger")
}
