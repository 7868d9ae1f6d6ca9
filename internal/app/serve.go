package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/startup"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/privilege"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/base/release"
	"github.com/RelevanceAI/harvest/internal/server"
)

// Foreground runs a server in this process, and writes its log to log. It calls ready when the server can be
// reached, and returns after ctx ends or a client stops the server.
func Foreground(ctx context.Context, cfg config.Config, log io.Writer, ready func(*App)) error {
	return serve(ctx, cfg, log, false, ready)
}

// Background runs the server that a command has started: it reports to that command (package startup), logs to
// the data directory, and listens on no TCP address.
func Background(ctx context.Context, load func() (config.Config, error)) error {
	reported := false
	err := serveBackground(ctx, load, func(*App) {
		reported = true
		startup.Report(nil)
	})
	if err != nil && !reported {
		startup.Report(err)
	}
	return err
}

func serveBackground(ctx context.Context, load func() (config.Config, error), ready func(*App)) error {
	cfg, err := load()
	if err != nil {
		return err
	}
	processes.KeepFiles()
	// A log that grows for weeks must not fill the disk.
	log, err := openRolling(filepath.Join(cfg.Data, startup.LogName), startup.LogLimit, becomeOutput)
	if err != nil {
		return err
	}
	defer log.Close()
	return serve(ctx, cfg, log, true, ready)
}

func serve(ctx context.Context, cfg config.Config, log io.Writer, background bool, ready func(*App)) error {
	processes.KeepFiles()
	logf.Setup(log, cfg.Log.Level, cfg.Log.Format == "json")
	// Binaries with cgo cannot do it; only those of tests with the race detector have cgo.
	if err := privilege.Keep(privilege.Server); errors.Is(err, unix.ENOTSUP) {
		logf.Warnf(ctx, "the server keeps all capabilities: it is built with cgo")
	} else if err != nil {
		return err
	}
	app, err := Open(ctx, cfg, background)
	if err != nil {
		return err
	}
	logf.Infof(ctx, "harvest %s serves %s %s", release.Version(), filepath.Join(cfg.Data, client.Socket), app.url)
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

// Welcome writes how to reach a server in the foreground. With link, it includes a sign-in link: only for the
// person at a terminal, because files and journals have other readers.
func (a *App) Welcome(w io.Writer, link bool) {
	if a.url == "" {
		return
	}
	fmt.Fprintf(w, "Harvest listens on %s\n", a.url)
	if a.modalURL != "" {
		fmt.Fprintf(w, "Programs written for Modal find it at %s: harvest modal env\n", a.modalURL)
	}
	if a.cfg.OIDC.Issuer != "" {
		fmt.Fprintf(w, "Sign in with %s at %s%s\n", a.cfg.OIDC.Issuer, a.url, api.SignInOIDC)
	}
	if link {
		if link, err := server.SignInLink(a.ring, account.Local(), a.url); err == nil {
			fmt.Fprintf(w, "To sign in with a browser, open this link within 15 minutes. It works once.\n\n  %s\n\n",
				link)
			return
		}
	}
	fmt.Fprintln(w, "To sign in with a browser: harvest key link")
}
