package plan

import (
	"runtime"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// mission: B2
func TestBadDockerfiles(t *testing.T) {
	t.Parallel()
	images := map[string]image.Config{
		"base": {}, "chained": {OnBuild: []string{"ONBUILD RUN true"}}, "many": {OnBuild: make([]string, 200)},
		"from": {OnBuild: []string{"FROM base"}}, "device": {OnBuild: []string{"RUN --device=x.example/y true"}},
		"comment": {OnBuild: []string{"# a\n# check=skip=all\nRUN true"}},
	}
	for name, c := range map[string]struct {
		text, want, remedy string
		kind               errors.Kind
	}{
		"empty":         {text: "", want: "the Dockerfile is empty", remedy: "begin it with FROM"},
		"only comments": {text: "# nothing\n\n", want: "the Dockerfile is empty"},
		"no FROM":       {text: "RUN true\n", want: "no build stage"},
		"only ARG":      {text: "ARG A=1\n", want: "has no FROM"},
		"unknown instruction": {text: "FROM base\nRUNN echo\n",
			want: "line 2 of the Dockerfile: unknown instruction: RUNN", remedy: "write RUN"},
		"unknown, no idea": {text: "FROM base\n\nBLAHBLAH echo\n", want: "line 3",
			remedy: "see https://docs.docker.com"},
		"NUL":       {text: "FROM base\nRUN \x00\n", want: "line 2 of the Dockerfile: there is a NUL byte"},
		"not UTF-8": {text: "FROM base\nRUN \xff\xfe\n", want: "not UTF-8"},
		"too large": {text: "FROM base\n" + strings.Repeat("RUN true\n", 1<<20), want: "more than the maximum",
			remedy: "COPY"},
		"too many": {text: "FROM base\n" + strings.Repeat("RUN true\n", 3000), want: "3000 instructions"},
		"unknown base": {text: "FROM nonsense\n",
			want: `line 1 of the Dockerfile: there is no image "nonsense"`, remedy: "pull it", kind: errors.NotFound},
		"empty base":  {text: "ARG B\nFROM $B\n", want: "should not be blank", remedy: "--build-arg"},
		"from itself": {text: "FROM a AS a\n", want: `there is no image "a"`, kind: errors.NotFound},
		"from later": {text: "FROM b AS a\nFROM base AS b\nFROM a\n", want: `there is no image "b"`,
			kind: errors.NotFound},
		"circular": {text: "FROM base AS a\nCOPY --from=b /x /x\nFROM base AS b\nCOPY --from=a /x /x\n",
			want: "line 4 of the Dockerfile: circular dependency", remedy: "do not need this one"},
		"COPY URL": {text: "FROM base\nCOPY http://x.example/a /x\n", want: "source can't be a URL for COPY",
			remedy: "ADD"},
		"COPY nothing":       {text: "FROM base\nCOPY a\n", want: "line 2"},
		"COPY from a number": {text: "FROM base\nCOPY --from=7 a b\n", want: "there is no stage 7"},
		"COPY from a variable": {text: "FROM base\nARG S=base\nCOPY --from=$S a b\n",
			want: "variables are not expanded"},
		"ADD git": {text: "FROM base\nADD https://x.example/a.git /x\n", want: "git repository",
			kind: errors.Unsupported},
		"ADD git with a query": {text: "FROM base\nADD https://x.example/a.git?ref=main&subdir=b /x\n",
			want: "git repository", remedy: "git clone", kind: errors.Unsupported},
		"ADD git by commit": {text: "FROM base\nADD --checksum=abc https://x.example/a.git?fetch-by-commit /x\n",
			want: "git repository", kind: errors.Unsupported},
		"ADD git over ssh": {text: "FROM base\nADD git@x.example:a.git#main:b /x\n", want: "git repository",
			kind: errors.Unsupported},
		"ADD git, unknown query": {text: "FROM base\nADD https://x.example/a.git?moon=1 /x\n",
			want: `line 2 of the Dockerfile: unexpected query "moon"`},
		"link with names": {text: "FROM base\nCOPY --link --chown=app a /a\n",
			want:   "line 2 of the Dockerfile: --chown=app: user and group names can't be resolved when used with",
			remedy: "numbers"},
		"link with a group": {text: "FROM base\nADD --link --chown=1:app a /a\n", want: "--chown=1:app",
			remedy: "numbers"},
		"ADD bad checksum": {text: "FROM base\nADD --checksum=sha256:1 http://x.example/a /x/\n",
			want: "checksum digest"},
		"ADD checksum of file": {text: "FROM base\nADD --checksum=sha256:1 a /x/\n", want: "checksum requires"},
		"bad mode":             {text: "FROM base\nCOPY --chmod=999 a b\n", want: "invalid chmod"},
		"ssh": {text: "FROM base\nRUN --mount=type=ssh,required=true true\n",
			want: "ssh,required=true is not supported", remedy: "secret", kind: errors.Unsupported},
		"unknown mount": {text: "FROM base\nRUN --mount=type=moon,target=/x true\n",
			want: "unsupported mount type"},
		"mount nowhere": {text: "FROM base\nRUN --mount=type=tmpfs true\n", want: `invalid mount target "/"`},
		"mount over all": {text: "FROM base\nRUN --mount=type=cache,target=/ true\n",
			want: `invalid mount target "/"`},
		"mount twice": {text: "FROM base\nRUN --mount=type=cache,target=/x --mount=type=tmpfs,target=/x true\n", want: "two mounts"},
		"cache source": {text: "FROM base\nRUN --mount=type=cache,source=/s,target=/x true\n",
			want: "the mount at /x has the source /s, but no files", remedy: "from"},
		"bind of nothing": {text: "FROM base\nRUN --mount=from=scratch,source=/s,target=/x true\n",
			want: "the mount at /x has the source /s, but no files", remedy: "from"},
		"host network": {text: "FROM base\nRUN --network=host true\n", want: "as isolated as sandboxes",
			kind: errors.Denied},
		"insecure": {text: "FROM base\nRUN --security=insecure true\n", want: "as isolated as sandboxes",
			kind: errors.Denied},
		"device": {text: "FROM base\nRUN --device=x.example/y true\n", want: "--device",
			kind: errors.Unsupported},
		"optional device": {text: "FROM base\nRUN --device=name=x.example/y,required=false true\n", want: "--device",
			kind: errors.Unsupported},
		"device of the base": {text: "FROM device\n", want: "line 1 of the Dockerfile: RUN cannot have --device",
			remedy: "leave it out", kind: errors.Unsupported},
		"device of a stage": {text: "FROM base AS a\nONBUILD RUN --device=x true\nFROM a\n", want: "--device",
			kind: errors.Unsupported},
		"epoch of the context": {text: "ARG SOURCE_DATE_EPOCH=context\nFROM base\n",
			want: `line 1 of the Dockerfile: SOURCE_DATE_EPOCH: invalid time "context"`, remedy: "names of"},
		"epoch of a stage": {
			text: "ARG A=1\nARG SOURCE_DATE_EPOCH=a\nFROM scratch AS a\nADD https://x.example/a /\nFROM base\n",
			want: `line 2 of the Dockerfile: SOURCE_DATE_EPOCH: invalid time "a"`, remedy: "seconds since 1970"},
		"epoch of a variable": {text: "ARG E=text\nARG SOURCE_DATE_EPOCH=con$E\nFROM base\n",
			want: `line 2 of the Dockerfile: SOURCE_DATE_EPOCH: invalid time "context"`},
		"negative epoch":      {text: "ARG SOURCE_DATE_EPOCH=-1\nFROM base\n", want: `invalid time "-1"`},
		"late epoch":          {text: "ARG SOURCE_DATE_EPOCH=999999999999999\nFROM base\n", want: "invalid time"},
		"RUN nothing":         {text: "FROM base\nRUN []\n", want: "line 2"},
		"bad port":            {text: "FROM base\nEXPOSE 99999\n", want: "line 2 of the Dockerfile: invalid container"},
		"bad protocol":        {text: "FROM base\nEXPOSE 80/x\n", want: "invalid proto"},
		"bad user":            {text: "FROM base\nUSER a b/c\n", want: "invalid user"},
		"bad expansion":       {text: "FROM base\nENV A=${B:?missing}\n", want: "line 2"},
		"bad expansion early": {text: "ARG A=${B:?missing}\nFROM base\n", want: "line 1"},
		"ONBUILD ONBUILD":     {text: "FROM base\nONBUILD ONBUILD RUN true\n", want: "line 2"},
		"ONBUILD FROM":        {text: "FROM from\n", want: "invalid instruction ONBUILD"},
		"ONBUILD comment":     {text: "FROM comment\n", want: "invalid instruction ONBUILD"},
		"ONBUILD many":        {text: "FROM many\n", want: "200 ONBUILD"},
		"foreign platform": {text: "FROM --platform=linux/s390x base\nRUN true\n",
			want: "cannot run on this machine", kind: errors.Unsupported},
		"foreign system": {text: "FROM --platform=windows/" + runtime.GOARCH + " base\nRUN true\n",
			want: "cannot run on this machine", kind: errors.Unsupported},
		"heredoc without end": {text: "FROM base\nRUN <<E\necho\n", want: "Dockerfile"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := planOf(t, image.Spec{Dockerfile: c.text}, images)
			if c.kind == "" {
				c.kind = errors.Invalid
			}
			if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.want) ||
				!strings.Contains(errors.RemedyOf(err), c.remedy) {
				t.Errorf("got %s: %q (%q), want %s: %q (%q)", errors.KindOf(err), errors.Message(err),
					errors.RemedyOf(err), c.kind, c.want, c.remedy)
			}
		})
	}
	for name, c := range map[string]struct {
		spec image.Spec
		want string
	}{
		"unknown target": {image.Spec{Dockerfile: "FROM base AS a\nFROM base\n", Target: "c"},
			`there is no stage "c"`},
		"commands FROM": {image.Spec{Base: "base", Commands: []string{"RUN true", "FROM base"}},
			"line 2 of the commands: commands on top of an image cannot have a FROM"},
		"epoch of an argument": {image.Spec{Dockerfile: "FROM base\n", Args: map[string]string{EpochArg: "context"}},
			`the build argument SOURCE_DATE_EPOCH: invalid time "context"`},
		"commands bad": {image.Spec{Base: "base", Commands: []string{"RUN true", "RUNN true"}},
			"line 2 of the commands: unknown instruction"},
		"commands no base": {image.Spec{Base: "a b", Commands: []string{"RUN true"}}, "invalid base"},
	} {
		_, err := planOf(t, c.spec, images)
		if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzPlan shows that no text makes the planner panic.
func FuzzPlan(f *testing.F) {
	for _, seed := range []string{
		"FROM base\nRUN echo $A\n", "ARG A=1\nFROM base AS b\nCOPY --from=0 a b\nRUN <<E\nx\nE\n",
		"FROM base\nCOPY <<A <<B /x/\n1\nA\n2\nB\n",
		"# escape=`\nFROM base\nRUN a `\n b\n",
		"FROM base\nRUN --mount=type=secret,id=x,env=Y,target=/z,mode=0777 true\n",
		"FROM base\nEXPOSE 1-5/udp $X\n",
		"FROM base\nADD --checksum=sha256:aa --chmod=u+x http://x/ /\n",
		"ARG SOURCE_DATE_EPOCH=${X#a\\\\*}\nFROM base\n# check=skip=all\nRUN true\n",
		"FROM base\nONBUILD COPY . .\nHEALTHCHECK --interval=1s CMD x\n",
		"FROM --platform=$BUILDPLATFORM base\nENV A=\"${B:-$C}\" D='x'\nVOLUME [\"/a\"]\nSHELL [\"a\"]\nRUN x\nENTRYPOINT y\n", "FROM scratch\nWORKDIR ${X%y}\n",
	} {
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, text, target string) {
		_, err := planOf(t, image.Spec{Dockerfile: text, Target: target},
			map[string]image.Config{"base": {OnBuild: []string{"RUN true"}}})
		if err != nil && errors.KindOf(err) == errors.Internal {
			t.Errorf("an internal error: %v", err)
		}
	})
}
