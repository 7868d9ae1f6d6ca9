package modal_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/internal/base/account"
)

// imageOf requests an image, and returns its ID and the builds that it caused: none if the image existed.
func (w *world) imageOf(def pb.Image_builder, force bool, more ...string) (string, []built, error) {
	w.t.Helper()
	w.images.mu.Lock()
	before := len(w.images.built)
	w.images.mu.Unlock()
	reply, err := w.control.ImageGetOrCreate(w.ctx(more...), pb.ImageGetOrCreateRequest_builder{Image: def.Build(),
		ForceBuild: force, BuilderVersion: "2025.06"}.Build())
	w.images.mu.Lock()
	defer w.images.mu.Unlock()
	made := slices.Clone(w.images.built[before:])
	if err == nil && reply.GetResult().GetStatus() != pb.GenericResult_GENERIC_STATUS_SUCCESS {
		w.t.Fatalf("the build ended with %v", reply.GetResult())
	}
	return reply.GetImageId(), made, err
}

// on is a build on the image with that ID, which Python's SDK calls "base".
func on(base string, commands ...string) pb.Image_builder {
	return pb.Image_builder{
		BaseImages:         []*pb.BaseImage{pb.BaseImage_builder{DockerTag: "base", ImageId: base}.Build()},
		DockerfileCommands: append([]string{"FROM base"}, commands...),
	}
}

// TestPythonImages checks that the commands of Python's SDK 1.5 are built as they are, on the image that they name,
// with the files that come with them. The SDK uses the builder's version 2025.06, which the server announces.
//
// mission: B2
func TestPythonImages(t *testing.T) {
	w := newWorld(t)
	slim := []string{
		"FROM python:3.13.3-slim-bookworm", "RUN apt-get update", "RUN apt-get install -y gcc gfortran build-essential",
		"RUN pip install --upgrade pip wheel uv",
		"RUN echo 'debconf debconf/frontend select Noninteractive' | debconf-set-selections", `CMD ["sleep", "172800"]`,
	}
	base, made, err := w.imageOf(pb.Image_builder{DockerfileCommands: slim}, false)
	if err != nil || len(made) != 1 || made[0].spec.Base != "python:3.13.3-slim-bookworm" ||
		!slices.Equal(made[0].spec.Commands, slim[1:]) {
		t.Fatalf("debian_slim: %+v, %v", made, err)
	}
	secret, err := w.control.SecretGetOrCreate(w.ctx(), pb.SecretGetOrCreateRequest_builder{
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL,
		EnvDict:            map[string]string{"GITHUB_TOKEN": "ghp"},
	}.Build())
	if err != nil {
		t.Fatal(err)
	}
	files := func(def pb.Image_builder, pairs ...string) pb.Image_builder {
		for i := 0; i < len(pairs); i += 2 {
			def.ContextFiles = append(def.ContextFiles, pb.ImageContextFile_builder{Filename: pairs[i],
				Data: []byte(pairs[i+1])}.Build())
		}
		return def
	}
	private := on(base, "RUN apt-get update && apt-get install -y git",
		`RUN python3 -m pip install "git+https://me:$GITHUB_TOKEN@github.com/a/b"`)
	private.SecretIds = []string{secret.GetSecretId()}
	ids := map[string]string{}
	for name, c := range map[string]struct {
		def   pb.Image_builder
		first string // command
		files map[string]string
	}{
		"apt_install": {on(base, "RUN apt-get update", "RUN apt-get install -y git 'lib c'"),
			"RUN apt-get update", nil},
		"pip_install": {on(base, "RUN python -m pip install 'httpx~=0.23.3' numpy"),
			"RUN python -m pip install 'httpx~=0.23.3' numpy", nil},
		"uv_pip_install": {on(base, "COPY --from=ghcr.io/astral-sh/uv:latest /uv /.uv/uv",
			"RUN /.uv/uv pip install --python $(command -v python) --compile-bytecode numpy"),
			"COPY --from=ghcr.io/astral-sh/uv:latest /uv /.uv/uv", nil},
		"run_commands": {on(base, "RUN make", `ENV A=1`, "WORKDIR /w", `ENTRYPOINT ["sh"]`, "CMD []"),
			"RUN make", nil},
		"pip_install_private_repos": {private,
			"RUN --mount=type=secret,id=GITHUB_TOKEN,env=GITHUB_TOKEN apt-get update && apt-get install -y git", nil},
		"pip_install_from_requirements": {files(on(base, "COPY /.requirements.txt /.requirements.txt",
			"RUN python -m pip install -r /.requirements.txt"), "/.requirements.txt", "numpy\n"),
			"COPY /.requirements.txt /.requirements.txt", map[string]string{".requirements.txt": "numpy\n"}},
		"other requirements": {files(on(base, "COPY /.requirements.txt /.requirements.txt",
			"RUN python -m pip install -r /.requirements.txt"), "/.requirements.txt", "scipy\n"),
			"COPY /.requirements.txt /.requirements.txt", map[string]string{".requirements.txt": "scipy\n"}},
		"uv_sync": {files(on(base, "COPY /.pyproject.toml /.uv/pyproject.toml", "COPY /.uv.lock /.uv/uv.lock",
			"RUN /.uv/uv sync --project=/.uv --frozen", "ENV PATH=/.uv/.venv/bin:$PATH"), "/.pyproject.toml",
			"[project]\n", "/.uv.lock", ""),
			"COPY /.pyproject.toml /.uv/pyproject.toml", map[string]string{".pyproject.toml": "[project]\n",
				".uv.lock": ""}},
	} {
		id, made, err := w.imageOf(c.def, false)
		if err != nil || len(made) != 1 {
			t.Errorf("%s: %d builds, %v", name, len(made), err)
			continue
		}
		got := made[0]
		if !strings.HasPrefix(got.spec.Base, "img_") || len(got.spec.Commands) != len(c.def.DockerfileCommands)-1 ||
			got.spec.Commands[0] != c.first || !maps.Equal(got.files, c.files) {
			t.Errorf("%s: %+v", name, got)
		}
		if name == "pip_install_private_repos" && !maps.Equal(got.secrets, map[string]string{"GITHUB_TOKEN": "ghp"}) {
			t.Errorf("%s: the secrets are %v", name, got.secrets)
		}
		if other := ids[id]; other != "" {
			t.Errorf("%s is the same image as %s", name, other)
		}
		ids[id] = name
	}
	left, err := filepath.Glob(filepath.Join(w.dir, "context-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("there are left %v, %v", left, err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "context-1.tar"), nil,
		0o600); err != nil { // as a server that was killed
		t.Fatal(err)
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
	if left, err = filepath.Glob(filepath.Join(w.dir, "context-*")); err != nil || len(left) > 0 {
		t.Errorf("the next server leaves %v, %v", left, err)
	}
	mounted := on(base, "COPY . /")
	mounted.ContextMountId = "mo-1"
	for name, c := range map[string]struct {
		def  pb.Image_builder
		code codes.Code
	}{
		"local files that are not": {mounted, codes.NotFound},
		"a file beside":            {files(on(base, "COPY /a /a"), "/../a", "x"), codes.InvalidArgument},
		"a file without a name":    {files(on(base, "COPY /a /a"), "/", "x"), codes.InvalidArgument},
		"no commands":              {pb.Image_builder{}, codes.InvalidArgument},
		"a base that there is not": {on("im-000000000000000000000000", "RUN true"), codes.NotFound},
	} {
		if _, made, err := w.imageOf(c.def, false); status.Code(err) != c.code || len(made) != 0 {
			t.Errorf("%s: %v, %d builds", name, err, len(made))
		}
	}
}

// TestBuildsAreKept checks that an image is not built again unless a build is forced, and that a different image has a
// different ID.
//
// mission: B2
func TestBuildsAreKept(t *testing.T) {
	w := newWorld(t)
	plain := pb.Image_builder{DockerfileCommands: []string{"FROM base", "RUN date >/stamp"}}
	first, made, err := w.imageOf(plain, false)
	if err != nil || len(made) != 1 || made[0].force {
		t.Fatalf("%+v, %v", made, err)
	}
	if again, made, err := w.imageOf(plain, false); err != nil || again != first || len(made) != 0 {
		t.Errorf("once more, it is %s instead of %s, after %d builds, %v", again, first, len(made), err)
	}
	seen := map[string]string{first: "the first"}
	other := func(name string, id string, made []built, err error) {
		t.Helper()
		if err != nil || len(made) != 1 || seen[id] != "" {
			t.Errorf("%s: it is %s's ID %s, after %d builds, %v", name, seen[id], id, len(made), err)
		}
		seen[id] = name
	}
	id, made, err := w.imageOf(plain, true, "x-idempotency-key", "one")
	other("forced", id, made, err)
	if len(made) == 1 && !made[0].force {
		t.Error("what is forced is not")
	}
	id, made, err = w.imageOf(plain, true, "x-idempotency-key", "two")
	other("forced again", id, made, err)
	if id, made, err := w.imageOf(plain, false); err != nil || id != first || len(made) != 0 {
		t.Errorf("not forced, after that, it is %s, after %d builds, %v", id, len(made), err)
	}
	id, made, err = w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base", "RUN date >/other"}}, false)
	other("other commands", id, made, err)
	id, made, err = w.imageOf(pb.Image_builder{DockerfileCommands: plain.DockerfileCommands,
		BuildArgs: map[string]string{"A": "1"}}, false)
	other("arguments", id, made, err)
	key, text, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "other", Account: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	w.id, w.secret = key.ID, text.Reveal()
	id, made, err = w.imageOf(plain, false)
	other("another account", id, made, err)
}
