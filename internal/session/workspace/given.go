package workspace

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// receive defines the functions of scripts that read a bundle from their input. git clone and git fetch need a file for
// it, which would take the space of the repository twice.
//
// header reads the bundle up to its objects. It sets head to the commit of BRANCH, or of HEAD without a branch (or, if
// otherwise is set, without that branch in the bundle), refs to the lines "COMMIT BRANCH", and format to the hash if
// the bundle names one. The shell reads a pipe byte by byte, so that the objects remain for git.
//
// objects adds the objects to the repository of the current directory, and checks that the history is complete, except
// for parents in SHALLOW. If the repository has the commits already, it leaves the objects unread.
//
// cloned makes a new repository as git clone does, with a branch for HEAD if one is there. REMOTE is the section of its
// configuration about the origin. Each git process costs milliseconds in a sandbox.
const receive = `
wrong() { echo "fatal: $1" >&2; exit 128; }
header() {
	IFS= read -r line || true
	case $line in "# v2 git bundle" | "# v3 git bundle") ;; *) wrong "the commits are not a git bundle" ;; esac
	top='' head='' refs='' format=''
	while IFS= read -r line && [ -n "$line" ]; do
		case $line in
		@object-format=*) format=${line#*=} ;;
		@*) wrong "the bundle needs $line, which is not supported" ;;
		-*) ;; # a commit that the repository must have: the check of the history finds it
		*" HEAD") top=${line%% *} ;;
		*" refs/heads/"*)
			refs="$refs${line%% *} ${line#* refs/heads/}
"
			[ "${line#* refs/heads/}" != "$BRANCH" ] || head=${line%% *}
			;;
		esac
	done
	[ -n "$BRANCH" ] && [ -z "${otherwise-}" ] || head=${head:-$top}
	[ -n "$head" ] || wrong "the bundle has no ${BRANCH:-HEAD}"
}
complete() {
	{ echo "$head"; printf %s "$refs" | cut -d ' ' -f 1; } | git rev-list --objects --quiet --stdin --not --all
}
objects() {
	if git cat-file -e "$head^{commit}" 2>/dev/null && complete 2>/dev/null; then return; fi
	git index-pack --stdin --fix-thin >/dev/null
	# The image may not have the parents either.
	if [ -n "$SHALLOW" ] && ! complete 2>/dev/null; then cat "$SHALLOW" >>.git/shallow; fi
	complete || wrong "the bundle does not have the whole history"
}
cloned() {
	name=$BRANCH
	if [ -z "$name" ]; then
		name=$(printf %s "$refs" | sed -n "s/^$head //p" | sort | { grep -xE 'main|master' || true; } | head -n 1)
		[ -n "$name" ] || name=$(printf %s "$refs" | sed -n "s/^$head //p" | head -n 1)
	fi
	trap 'rm -rf "$DIR/.git"' EXIT # a second attempt must not take it for a clone
	git init --quiet ${format:+"--object-format=$format"} "--initial-branch=${name:-main}" "$DIR"
	cd "$DIR"
	[ -z "$SHALLOW" ] || cp "$SHALLOW" .git/shallow
	git index-pack --stdin --fix-thin >/dev/null
	complete || wrong "the bundle does not have the whole history"
	if [ -n "$ORIGIN" ]; then
		printf %s "$REMOTE" >>.git/config
		mkdir -p .git/refs/remotes/origin
		[ -z "$name" ] || [ "$head" != "$top" ] || echo "ref: refs/remotes/origin/$name" >.git/refs/remotes/origin/HEAD
		tracked=$(printf %s "$refs" | sed 's|^\([0-9a-f]*\) \(.*\)|create refs/remotes/origin/\2 \1|')
	fi
	printf '%s\n' "${tracked-}" ${name:+"create refs/heads/$name $head"} | sed '/^$/d' | git update-ref --stdin
	if [ -z "$name" ]; then
		git checkout --quiet --detach "$head"
	else
		git reset --quiet --hard
		[ -z "$ORIGIN" ] || git branch --quiet "--set-upstream-to=origin/$name"
	fi
	trap - EXIT
}`

// sent is a Given on its way into a sandbox.
type sent struct {
	t      Tree
	given  Given
	bundle *os.File // nil for none
	copied bool     // givenDir exists
}

// send opens the bundle of g for script, and copies the other parts into the sandbox. The caller closes the result.
func (t Tree) send(ctx context.Context, g Given) (*sent, error) {
	s := &sent{t: t, given: g}
	if g.Bundle == "" {
		return s, nil
	}
	var err error
	if s.bundle, err = os.Open(g.Bundle); err != nil {
		return nil, errors.Wrapf(err, "open the bundle of session %s", t.Session)
	}
	if len(g.Shallow) == 0 && g.Patch == "" {
		return s, nil
	}
	s.copied = true
	archive, w := io.Pipe()
	go func() { w.CloseWithError(g.pack(w)) }()
	err = t.Fleet.CopyIn(ctx, t.Account, t.ID, givenDir, archive)
	_ = archive.Close() // it ends the goroutine
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

// pack writes the shallow file and the patch as a tar stream.
func (g Given) pack(out io.Writer) error {
	w := tar.NewWriter(out)
	put := func(name string, size int64, r io.Reader) error {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: time.Now()})
		if err == nil {
			_, err = io.Copy(w, r)
		}
		return errors.Wrapf(err, "pack %s", name)
	}
	if len(g.Shallow) > 0 {
		if err := put("shallow", int64(len(g.Shallow)), strings.NewReader(string(g.Shallow))); err != nil {
			return err
		}
	}
	if g.Patch != "" {
		f, err := os.Open(g.Patch)
		if err != nil {
			return errors.Wrapf(err, "open the uncommitted changes")
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return errors.Wrapf(err, "open the uncommitted changes")
		}
		if err := put("uncommitted.patch", info.Size(), f); err != nil {
			return err
		}
	}
	return errors.Wrapf(w.Close(), "pack the uncommitted changes")
}

// script passes s to a script that defines receive: the bundle is its input.
func (s *sent) script(sh shell.Script) shell.Script {
	path := func(name string, there bool) string {
		if !there {
			return ""
		}
		return givenDir + "/" + name
	}
	sh.Env["SENT"] = ""
	if s.bundle != nil {
		sh.Env["SENT"], sh.Input = "yes", s.bundle
	}
	sh.Env["SHALLOW"], sh.Env["PATCH"] = path("shallow", len(s.given.Shallow) > 0), path("uncommitted.patch",
		s.given.Patch != "")
	sh.Env["BY"], sh.Env["BYMAIL"] = s.given.Author.Name, s.given.Author.Email
	return sh
}

// close removes the copies.
func (s *sent) close(ctx context.Context) {
	if s.bundle != nil {
		_ = s.bundle.Close() // it was only read
	}
	if s.copied {
		s.t.Remove(context.WithoutCancel(ctx), givenDir)
	}
}
