package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // a format of nfpm.Get
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // a format of nfpm.Get

	"github.com/RelevanceAI/harvest/client/errors"
)

const description = `Sandboxes for coding agents and untrusted code
 Harvest runs coding agents and untrusted code in sandboxes on this machine.
 gVisor, built in, isolates them.`

// Scripts of both formats. The first argument of the second is "remove" in Debian and 0 in rpm when the package goes.
const (
	reload = `#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
`
	disable = `#!/bin/sh
set -e
case "$1" in
remove | 0) if [ -d /run/systemd/system ]; then systemctl disable --now harvest.service harvest-rootless.service; fi ;;
esac
`
)

// packageFor makes a Debian package or an rpm.
func (p *packing) packageFor(on platform, format string) error {
	temp, err := os.MkdirTemp("", "harvest-release-")
	if err != nil {
		return errors.Wrapf(err, "make a temporary directory")
	}
	defer os.RemoveAll(temp)
	for name, text := range map[string]string{"reload": reload, "disable": disable} {
		if err := os.WriteFile(filepath.Join(temp, name), []byte(text), 0o755); err != nil {
			return errors.Wrapf(err, "write a script")
		}
	}
	entries, err := p.packaged(on, format)
	if err != nil {
		return err
	}
	info := &nfpm.Info{Name: "harvest", Arch: on.Arch, Platform: on.OS, Version: p.Version, Section: "admin",
		Priority: "optional", Maintainer: "Harvest <" + repository + ">", Vendor: "Harvest", Description: description,
		Homepage: repository, License: "Apache-2.0", MTime: p.time(), DisableGlobbing: true}
	info.Recommends = []string{"mmdebstrap", "ca-certificates"}
	info.RPM.BuildHost, info.RPM.Summary = "localhost", "Sandboxes for coding agents and untrusted code"
	info.Scripts = nfpm.Scripts{PostInstall: filepath.Join(temp, "reload"), PreRemove: filepath.Join(temp, "disable"),
		PostRemove: filepath.Join(temp, "reload")}
	for _, e := range entries {
		if e.path == "" {
			e.path = filepath.Join(temp, strings.ReplaceAll(e.name, "/", "-"))
			if err := os.WriteFile(e.path, e.data, 0o600); err != nil {
				return errors.Wrapf(err, "write %s", e.name)
			}
		}
		info.Contents = append(info.Contents, &files.Content{Source: e.path, Destination: e.name,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: e.mode, MTime: p.time()}})
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return errors.Wrapf(err, "prepare")
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return errors.Wrapf(err, "choose the format")
	}
	return p.file(p.name(on, "."+format), func(w io.Writer) error { return packager.Package(info, w) })
}

// packaged lists the files of a package by their absolute paths.
func (p *packing) packaged(on platform, format string) ([]entry, error) {
	zsh, license := "/usr/share/zsh/vendor-completions/_harvest", "/usr/share/doc/harvest/copyright"
	if format == "rpm" {
		zsh, license = "/usr/share/zsh/site-functions/_harvest", "/usr/share/licenses/harvest/LICENSE"
	}
	entries := []entry{{name: "/usr/bin/harvest", mode: 0o755, path: filepath.Join(p.stage, on.String(), "harvest")}}
	for name, from := range map[string]string{
		"/usr/share/bash-completion/completions/harvest":    "completions/harvest.bash",
		"/usr/share/fish/vendor_completions.d/harvest.fish": "completions/harvest.fish",
		zsh: "completions/harvest.zsh", license: "LICENSE", "/usr/share/doc/harvest/README.md": "README.md"} {
		entries = append(entries, entry{name: name, mode: 0o644, path: filepath.Join(p.stage, from)})
	}
	for _, name := range units {
		text, err := os.ReadFile(filepath.Join(p.stage, name))
		if err != nil {
			return nil, errors.Wrapf(err, "read a unit")
		}
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin/harvest"), []byte("/usr/bin/harvest"))
		entries = append(entries, entry{name: "/usr/lib/systemd/system/" + name, mode: 0o644, data: text})
	}
	pages, err := os.ReadDir(filepath.Join(p.stage, "man"))
	if err != nil {
		return nil, errors.Wrapf(err, "list the manual pages")
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(p.stage, "man", page.Name()))
		if err != nil {
			return nil, errors.Wrapf(err, "read a manual page")
		}
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		if _, err := w.Write(text); err != nil {
			return nil, errors.Wrapf(err, "compress a manual page")
		}
		if err := w.Close(); err != nil {
			return nil, errors.Wrapf(err, "compress a manual page")
		}
		entries = append(entries, entry{name: "/usr/share/man/man1/" + page.Name() + ".gz", mode: 0o644,
			data: zipped.Bytes()})
	}
	return entries, nil
}
