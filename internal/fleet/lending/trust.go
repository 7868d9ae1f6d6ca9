package lending

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/image/trust"
	"github.com/RelevanceAI/harvest/internal/image/trust/installer"
)

// bundle is the file in sandboxes with all authorities that its programs trust, the broker's among them.
const bundle = "/usr/local/share/harvest/ca-certificates.crt"

// Env returns the variables that point programs to the bundle.
func Env() map[string]string { return trust.Env(bundle) }

// Install makes the programs of a sandbox trust the broker: it adds the authority to the bundles and keystores of the
// image, and writes the bundle that Env names. java is the directory of an installation of Java, or "".
func (b *Borrower) Install(ctx context.Context, box engine.Sandbox, java string) error {
	signs, err := b.server.secrets.Authority(ctx, b.sandbox.Account)
	if err != nil {
		return err
	}
	machine, err := os.ReadFile(trust.Bundle)
	if err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "read the authorities of this machine")
	}
	input, err := json.Marshal(installer.Request{Authority: signs.PEM(), Bundle: bundle, Java: java,
		Otherwise: string(machine)})
	if err != nil {
		return err
	}
	var said, failed bytes.Buffer
	p, err := box.Start(ctx, engine.Command{Args: []string{installer.Program}, Own: true, User: "0", Dir: "/",
		Stdin: bytes.NewReader(input), Stdout: &said, Stderr: &failed})
	if err != nil {
		return errors.Wrapf(err, "make the sandbox trust the broker of credentials")
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		return errors.Wrapf(err, "make the sandbox trust the broker of credentials")
	}
	if exit.Code != 0 {
		return errors.Errorf("make the sandbox trust the broker of credentials: code %d, %.500s", exit.Code,
			failed.String())
	}
	for line := range strings.Lines(said.String()) {
		logf.Warnf(ctx, "programs in Java do not trust the broker of credentials in sandbox %s: %.500s", b.sandbox.ID,
			strings.TrimSpace(line))
	}
	return nil
}
