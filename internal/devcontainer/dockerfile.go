package devcontainer

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The steps of a Dockerfile that install features. STEP is the name of a feature's step, DIR its directory in the
// context.
const (
	firstStep = `RUN --mount=type=bind,source=steps/users,target=/tmp/dev-container-features-step \
    mkdir -p /tmp/dev-container-features \
 && cd /tmp/dev-container-features \
 && sh /tmp/dev-container-features-step/users.sh >devcontainer-features.builtin.env
`
	featureStep = `RUN --mount=type=bind,source=DIR,target=/tmp/dev-container-features-source \
    --mount=type=bind,source=steps/STEP,target=/tmp/dev-container-features-step \
    cd /tmp/dev-container-features \
 && cp -R /tmp/dev-container-features-source STEP \
 && cp -R /tmp/dev-container-features-step/. STEP \
 && chown -R root:root STEP \
 && chmod -R 0755 STEP \
 && cd STEP \
 && ./devcontainer-features-install.sh \
 && rm -rf /tmp/dev-container-features/STEP
`
	lastStep = "RUN rm -rf /tmp/dev-container-features*\n"
)

// Installation is the build of an image with features, on top of a Base.
type Installation struct {
	// Image is the image to start from, and User its user; "" means root.
	Image, User string
	// ContainerUser and RemoteUser are those of Merged.Users.
	ContainerUser, RemoteUser string
	Features                  []*Feature // in the order of Resolve
	// ContainerEnv are variables of all processes, as in Merged. Those that depend on the environment, because they
	// have ${devcontainerId} or another variable, are left out: they must be set when it is created.
	ContainerEnv Env
	Metadata     Metadata // of the image to make
	// Labels are further labels of the image. Values have no line breaks.
	Labels map[string]string
}

// File is a file of a build's context.
type File struct {
	Path string
	Text string
}

// Dockerfile returns a Dockerfile, and the files that its context needs beside the directories of the features. The
// context is the directory of the Fetcher. Each feature is installed by root in a step of its own, after its
// containerEnv is set. The image has the user of the one it starts from, and a label with the metadata. The error is
// Invalid for values that a Dockerfile cannot have.
func Dockerfile(in Installation) (text string, files []File, err error) {
	var b strings.Builder
	for _, value := range []string{in.Image, in.User, in.ContainerUser, in.RemoteUser} {
		if !plain.MatchString(value) {
			err := errors.Newf(errors.Invalid, "%.200q: not an image or user", value)
			return "", nil, errors.Remedy(err, "correct image, containerUser or remoteUser")
		}
	}
	fmt.Fprintf(&b, "FROM %s\nUSER root\n", in.Image)
	if len(in.Features) > 0 {
		files = append(files, File{"steps/users/users.sh", usersScript(in.ContainerUser, in.RemoteUser)})
		b.WriteString(firstStep)
	}
	for i, f := range in.Features {
		step := fmt.Sprintf("%s_%d", f.ID, i)
		env, err := envLines(f.ContainerEnv, false)
		if err != nil {
			return "", nil, errors.Wrapf(err, "feature %s", f.Reference.Text)
		}
		b.WriteString(env)
		b.WriteString(strings.NewReplacer("STEP", step, "DIR", f.Dir).Replace(featureStep))
		files = append(files,
			File{path.Join("steps", step, "devcontainer-features.env"), assignments(f.Env())},
			File{path.Join("steps", step, "devcontainer-features-install.sh"), script(f)})
	}
	if len(in.Features) > 0 {
		b.WriteString(lastStep)
	}
	env, err := envLines(in.ContainerEnv, true)
	if err != nil {
		return "", nil, err
	}
	b.WriteString(env)
	// Lines have a maximum length.
	label := strings.ReplaceAll(dockerQuote(in.Metadata.join(",\n"), true), "\n", "\\\n")
	fmt.Fprintf(&b, "LABEL %s=%s\n", Label, label)
	for _, name := range slices.Sorted(maps.Keys(in.Labels)) {
		fmt.Fprintf(&b, "LABEL %s=%s\n", name, dockerQuote(in.Labels[name], true))
	}
	if in.User != "" {
		fmt.Fprintf(&b, "USER %s\n", in.User)
	}
	return b.String(), files, nil
}

// plain matches names of images and users, which may be "" and have no white space or syntax of shells.
var plain = regexp.MustCompile(`^[A-Za-z0-9._/:@-]*$`)

// usersScript returns a script that prints the variables of features about users. Users are names or numbers.
func usersScript(container, remote string) string {
	container, _, _ = strings.Cut(container, ":")
	remote, _, _ = strings.Cut(remote, ":")
	return `home() {
	while IFS=: read -r name _ id _ _ dir _; do
		if [ "$name" = "$1" ] || [ "$id" = "$1" ]; then printf %s "$dir"; return; fi
	done </etc/passwd
}
cat <<END
_CONTAINER_USER='` + container + `'
_REMOTE_USER='` + remote + `'
_CONTAINER_USER_HOME='$(home ` + container + `)'
_REMOTE_USER_HOME='$(home ` + remote + `)'
END
`
}

// envLines returns the instructions for variables. Values of features may refer to other variables; literal values
// may not.
func envLines(env Env, literal bool) (string, error) {
	var b strings.Builder
	for _, v := range env {
		if strings.ContainsAny(v.Value, "\n\r\x00") {
			err := errors.Newf(errors.Invalid, "containerEnv.%s: has a line break", v.Name)
			return "", errors.Remedy(err, "write the value on one line, or set it in remoteEnv")
		}
		if !v.Unset && !(literal && variable.MatchString(v.Value)) {
			fmt.Fprintf(&b, "ENV %s=%s\n", v.Name, dockerQuote(v.Value, literal))
		}
	}
	return b.String(), nil
}

// dockerQuote quotes a value for a Dockerfile.
func dockerQuote(s string, literal bool) string {
	s = strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s)
	if literal {
		s = strings.ReplaceAll(s, "$", `\$`)
	}
	return `"` + s + `"`
}

// ShellQuote quotes a text for a shell.
func ShellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// assignments returns variables as a file for shells.
func assignments(env Env) string {
	var b strings.Builder
	for _, v := range env {
		fmt.Fprintf(&b, "%s=%s\n", v.Name, ShellQuote(v.Value))
	}
	return b.String()
}

// script returns the script that calls install.sh of a feature with its options.
func script(f *Feature) string {
	name := f.Name
	if name == "" {
		name = f.ID
	}
	failed := fmt.Sprintf("ERROR: feature %q (%s) failed to install", name, withoutVersion(f.Reference.Text))
	if f.DocumentationURL != "" {
		failed += "; see " + f.DocumentationURL
	}
	var b strings.Builder
	b.WriteString("#!/bin/sh\nset -e\n")
	fmt.Fprintf(&b, "on_exit() { [ $? -eq 0 ] || echo %s >&2; }\ntrap on_exit EXIT\n", ShellQuote(failed))
	about := strings.TrimRight("feature "+f.ID+" "+f.Version, " ") + " (" + f.Reference.Text + ")"
	fmt.Fprintf(&b, "echo %s\n", ShellQuote(about))
	if f.Deprecated {
		b.WriteString("echo 'the feature is deprecated: its author no longer maintains it'\n")
	}
	b.WriteString("set -a\n. ../devcontainer-features.builtin.env\n. ./devcontainer-features.env\nset +a\n" +
		"./install.sh\n")
	return b.String()
}
