package plan

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// planOf plans a Dockerfile over images that are made up.
func planOf(t testing.TB, spec image.Spec, images map[string]image.Config) (*Plan, error) {
	t.Helper()
	return New(t.Context(), spec, func(_ context.Context, ref, platform string) (image.Image, error) {
		config, ok := images[ref]
		if !ok {
			return image.Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %q", ref), "pull it")
		}
		return image.Image{ID: "img_" + ref + platform, Config: config}, nil
	})
}

// kinds names the operations of a plan, in their order.
func kinds(p *Plan) string {
	var names []string
	for _, v := range p.Order {
		switch op := v.Op.Op.(type) {
		case *pb.Op_Source:
			names = append(names, op.Source.Identifier)
		case *pb.Op_Exec:
			names = append(names, "exec "+strings.Join(op.Exec.Meta.Args, " "))
		case *pb.Op_File:
			names = append(names, "file")
		case *pb.Op_Merge:
			names = append(names, "merge")
		}
	}
	return strings.Join(names, "; ")
}

func TestGraph(t *testing.T) {
	t.Parallel()
	p, err := planOf(t, image.Spec{Dockerfile: `FROM base AS a
ARG V=1
RUN echo $V
FROM a
COPY --link x /y
COPY <<E /z
text
E
RUN --mount=type=bind,from=tools,target=/t echo $V
ADD https://x.example/f /f
`}, map[string]image.Config{"base": {Env: map[string]string{"PATH": "/p"}}, "tools": {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(kinds(p))
	for _, v := range p.Order {
		t.Logf("%d %s", v.Line, v.Title)
	}
	if p.Target != p.Order[len(p.Order)-1] || p.Config.Env["PATH"] != "/p" {
		t.Errorf("got %+v", p.Config)
	}
}

// TestTargets checks that a stage can be built by name, in any case, and by number.
func TestTargets(t *testing.T) {
	t.Parallel()
	text := "FROM base AS one\nLABEL n=0\nFROM base\nLABEL n=1\nCOPY --from=0 /a /b\n\nFROM base AS Three\nLABEL n=2\n"
	for target, want := range map[string]string{"": "2", "one": "0", "ONE": "0", "0": "0", "1": "1", "2": "2",
		"three": "2"} {
		p, err := planOf(t, image.Spec{Dockerfile: text, Target: target}, map[string]image.Config{"base": {}})
		if err != nil || p.Config.Labels["n"] != want {
			t.Errorf("%q: got %+v, %v", target, p, err)
		}
	}
	_, err := planOf(t, image.Spec{Dockerfile: text, Target: "3"}, map[string]image.Config{"base": {}})
	if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.RemedyOf(err), "one, 1, three") {
		t.Errorf("got %v (%s)", err, errors.RemedyOf(err))
	}
}

func TestExpansion(t *testing.T) {
	t.Parallel()
	p, err := planOf(t, image.Spec{Dockerfile: `ARG TAG=x
FROM base${TAG:+y} AS s
ARG TAG
ARG DEF=d$TAG
ARG TARGETARCH
ARG GIVEN=no
ENV A=1 B=$A
ENV C=$A DEF=env
RUN echo
WORKDIR rel
WORKDIR ../$A
RUN pwd
USER u$A
SHELL ["/bin/zsh", "-c"]
RUN x
CMD y z
ENTRYPOINT ["e"]
EXPOSE 80 $PORTS 10-12/UDP
VOLUME /v$A
STOPSIGNAL SIGUSR$A
HEALTHCHECK --interval=5s CMD h
MAINTAINER me
ONBUILD RUN later
`, Args: map[string]string{"GIVEN": "yes", "PORTS": "9", "https_proxy": "http://p",
		"DEF": "over"}}, map[string]image.Config{
		"basey": {Env: map[string]string{"PATH": "/p"}, Dir: "/d", Cmd: []string{"old"},
			OnBuild: []string{"LABEL trigger=1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var runs []*pb.ExecOp
	for _, v := range p.Order {
		if run := v.Op.GetExec(); run != nil {
			runs = append(runs, run)
		}
	}
	env := strings.Join(slices.Sorted(slices.Values(runs[0].Meta.Env)), " ")
	if !strings.HasPrefix(env, "A=1 B= C=1 DEF=env GIVEN=yes PATH=/p TAG=x TARGETARCH=") {
		t.Errorf("the environment is %s", env)
	}
	if runs[0].Meta.ProxyEnv.HttpsProxy != "http://p" || runs[1].Meta.Cwd != "/d/1" || runs[0].Meta.Cwd != "/d" {
		t.Errorf("got %+v", runs[0])
	}
	last := runs[2].Meta
	if strings.Join(last.Args, " ") != "/bin/zsh -c x" || last.User != "u1" {
		t.Errorf("got %+v", last)
	}
	c := p.Config
	if strings.Join(c.Cmd, " ") != "/bin/zsh -c y z" || strings.Join(c.Entrypoint, " ") != "e" ||
		strings.Join(c.Volumes, " ") != "/v1" || c.StopSignal != "SIGUSR1" ||
		!strings.Contains(string(c.Healthcheck), "5000000000") || c.Author != "me" ||
		c.Labels["trigger"] != "1" || c.OnBuild[0] != "RUN later" ||
		strings.Join(c.Ports, " ") != "10/udp 11/udp 12/udp 80/tcp" || c.Env["DEF"] != "env" || c.Env["TAG"] != "" {
		t.Errorf("got %+v", c)
	}
	p, err = planOf(t, image.Spec{Dockerfile: "FROM base\nENTRYPOINT x\n"},
		map[string]image.Config{"base": {Cmd: []string{"old"}}})
	if err != nil || p.Config.Cmd != nil {
		t.Errorf("ENTRYPOINT keeps the base's CMD: %v", err)
	}
}

// TestEpoch checks which of a build argument and a global ARG gives the time of a build.
func TestEpoch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, given string
		want        int64 // 0 for none
	}{
		"none":              {text: "FROM base\n"},
		"argument":          {text: "FROM base\n", given: "SOURCE_DATE_EPOCH=5", want: 5},
		"global":            {text: "ARG SOURCE_DATE_EPOCH=6\nFROM base\n", want: 6},
		"both":              {text: "ARG SOURCE_DATE_EPOCH=6\nFROM base\n", given: "SOURCE_DATE_EPOCH=5", want: 5},
		"argument for word": {text: "ARG SOURCE_DATE_EPOCH=a\nFROM base\n", given: "SOURCE_DATE_EPOCH=5", want: 5},
		"empty argument":    {text: "ARG SOURCE_DATE_EPOCH=6\nFROM base\n", given: "SOURCE_DATE_EPOCH="},
		"no value":          {text: "ARG SOURCE_DATE_EPOCH\nFROM base\n"},
		"empty variable":    {text: "ARG E\nARG SOURCE_DATE_EPOCH=${E:-}\nFROM base\n"},
		"variable":          {text: "ARG E=6\nARG SOURCE_DATE_EPOCH=$E\nFROM base\n", want: 6},
		"given variable":    {text: "ARG E=6\nARG SOURCE_DATE_EPOCH=$E\nFROM base\n", given: "E=7", want: 7},
		"twice":             {text: "ARG SOURCE_DATE_EPOCH=6 E=8\nARG SOURCE_DATE_EPOCH=$E\nFROM base\n", want: 8},
		"escape":            {text: "# escape=`\nARG SOURCE_DATE_EPOCH=`6\nFROM base\n", want: 6},
		"of a stage":        {text: "FROM base\nARG SOURCE_DATE_EPOCH=6\n"},
	} {
		args := map[string]string{}
		if key, value, ok := strings.Cut(c.given, "="); ok {
			args[key] = value
		}
		p, err := planOf(t, image.Spec{Dockerfile: c.text, Args: args}, map[string]image.Config{"base": {}})
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == 0 && !p.Epoch.IsZero() || c.want != 0 && p.Epoch.Unix() != c.want:
			t.Errorf("%s: got %v, want %d", name, p.Epoch, c.want)
		}
	}
}

// TestCheckComments checks that comments for BuildKit's linter change nothing.
func TestCheckComments(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"# check=skip=all\nFROM base\nLABEL a=1\n", "FROM base\n# check=skip=all\nLABEL a=1\n",
		"# a comment\n# check=skip=all\nFROM base\nLABEL a=1\n",
		"FROM base\n# check=experimental=all;error=true\nLABEL a 1\n",
	} {
		p, err := planOf(t, image.Spec{Dockerfile: text}, map[string]image.Config{"base": {}})
		if err != nil || p.Config.Labels["a"] != "1" {
			t.Errorf("%q: got %+v, %v", text, p, err)
		}
	}
}

// TestDigestsOfOneTag checks that names with a tag and different digests are different images.
func TestDigestsOfOneTag(t *testing.T) {
	t.Parallel()
	digests := []string{"sha256:" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("b", 64)}
	text := fmt.Sprintf("FROM x:1@%s\nFROM x:1@%s\nCOPY --from=0 /a /b\nFROM x:1@%s\nCOPY --from=1 /a /b\n", digests[0],
		digests[1], digests[0])
	count := 0
	p, err := New(t.Context(), image.Spec{Dockerfile: text}, func(_ context.Context, ref, _ string,
	) (image.Image, error) {
		count++
		_, digest, _ := strings.Cut(ref, "@")
		return image.Image{Digest: digest}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, img := range p.Images() {
		got = append(got, img.Digest)
	}
	slices.Sort(got)
	if !slices.Equal(got, digests) || count != 2 {
		t.Errorf("%d images were resolved, and the plan has %v", count, got)
	}
}
