package lending

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/image/trust"
	"github.com/RelevanceAI/harvest/internal/image/trust/installer"
)

// bundle is the file in sandboxes with all authorities that its programs trust, the broker's among them.
const bundle = "/usr/local/share/harvest/ca-certificates.crt"

// Env returns the variables that point programs to the bundle.
func Env() map[string]string { return trust.Env(bundle) }

// Install makes the programs of a sandbox trust the broker: it adds the authority to the bundles and keystores of the
// image, and writes the bundle that Env names. java is the directory of an installation of Java, or "". It also writes
// the files of credentials of the sandbox's logins, with placeholders.
func (b *Borrower) Install(ctx context.Context, box engine.Sandbox, java string) error {
	if err := b.trust(ctx, box, java); err != nil {
		return err
	}
	files, err := b.server.secrets.Files(ctx, b.sandbox.Account, b.sandbox.Lent()...)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := writeHome(ctx, box, f); err != nil {
			return errors.Wrapf(err, "write the credentials in ~/%s", f.Path)
		}
	}
	return nil
}

// homeScript writes its input to a file below the home directory of the user of commands: PATH.
const homeScript = `umask 077 && f=${HOME:-/root}/$1 && mkdir -p "${f%/*}" && cat >"$f"`

// writeHome writes a file that belongs to the user of commands. Images without a shell do not get it.
func writeHome(ctx context.Context, box engine.Sandbox, f secret.File) error {
	var problem bytes.Buffer
	p, err := box.Start(ctx, engine.Command{Args: []string{"/bin/sh", "-c", homeScript, "sh", f.Path},
		Stdin: strings.NewReader(f.Text), Stderr: &problem})
	if errors.Is(err, errors.Invalid) {
		logf.Infof(ctx, "the sandbox has no shell, and no credentials in ~/%s", f.Path)
		return nil
	}
	if err != nil {
		return err
	}
	exit, err := p.Wait(ctx)
	if err == nil && exit.Code != 0 {
		err = errors.Newf(errors.Unavailable, "the home directory cannot be written: %.200s", problem.String())
	}
	return err
}

func (b *Borrower) trust(ctx context.Context, box engine.Sandbox, java string) error {
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
