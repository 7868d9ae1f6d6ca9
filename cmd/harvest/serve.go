//go:build linux && (amd64 || arm64) && !clientonly

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/config"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/privilege"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/server"
)

// serveForeground is harvest up.
func (c *cli) serveForeground(ctx context.Context, settings ...config.Setting) error {
	return c.serve(ctx, false, c.welcome, settings...)
}

func (c *cli) serve(ctx context.Context, background bool, ready func(*App), settings ...config.Setting) error {
	cfg, err := c.config(settings...)
	if err != nil {
		return err
	}
	keepFiles()
	log := c.err
	if background { // a log that grows for weeks must not fill the disk
		own, err := openRolling(filepath.Join(cfg.Data, logName), logLimit, becomeOutput)
		if err != nil {
			return err
		}
		defer own.Close()
		log = own
	}
	logf.Setup(log, cfg.Log.Level, cfg.Log.Format == "json")
	// Binaries with cgo cannot do it; only those of tests with the race detector have cgo.
	if err := privilege.Keep(privilege.Server); errors.Is(err, unix.ENOTSUP) {
		logf.Warnf(ctx, "the server keeps all capabilities: it is built with cgo")
	} else if err != nil {
		return err
	}
	app, err := OpenApp(ctx, cfg, background)
	if err != nil {
		return err
	}
	logf.Infof(ctx, "harvest %s serves %s %s", version(), filepath.Join(cfg.Data, client.Socket), app.url)
	ready(app)
	err = app.Serve(ctx)
	logf.Infof(ctx, "the server has ended")
	return err
}

// becomeOutput makes a file the standard output and error of this process. If the Go runtime aborts, it writes
// the reason there.
func becomeOutput(f *os.File) error {
	return errors.Join(unix.Dup3(int(f.Fd()), 1, 0), unix.Dup3(int(f.Fd()), 2, 0))
}

// welcome prints how to reach a server in the foreground. The sign-in link is only for the person at this
// terminal: files and journals have other readers.
func (c *cli) welcome(app *App) {
	if app.url == "" || c.quiet {
		return
	}
	fmt.Fprintf(c.out, "Harvest listens on %s\n", app.url)
	if app.modalURL != "" {
		fmt.Fprintf(c.out, "Programs written for Modal find it at %s: harvest modal env\n", app.modalURL)
	}
	if app.cfg.OIDC.Issuer != "" {
		fmt.Fprintf(c.out, "Sign in with %s at %s%s\n", app.cfg.OIDC.Issuer, app.url, api.SignInOIDC)
	}
	if _, shown := terminal(c.out); !shown { // files and pipes would keep the link
		fmt.Fprintln(c.out, "To sign in with a browser: harvest key link")
		return
	}
	link, err := server.SignInLink(app.ring, account.Local(), app.url)
	if err != nil {
		fmt.Fprintln(c.out, "To sign in with a browser: harvest key link")
		return
	}
	fmt.Fprintf(c.out, "To sign in with a browser, open this link within 15 minutes. It works once.\n\n  %s\n\n", link)
}

// serveBackground is the counterpart of startServer.
func (c *cli) serveBackground(ctx context.Context) error {
	pipe := os.NewFile(readyFD, "ready")
	tell := func(r readiness) {
		// The parent may be gone, which changes nothing.
		_ = json.NewEncoder(pipe).Encode(r)
		_ = pipe.Close()
	}
	told := false
	err := c.serve(ctx, true, func(*App) {
		told = true
		tell(readiness{})
	})
	if err != nil && !told {
		tell(readiness{Problem: &api.Problem{
			Code: string(errors.KindOf(err)), Detail: errors.Message(err), Stage: errors.StageOf(err),
			Remedy: errors.RemedyOf(err),
		}})
	}
	return err
}
