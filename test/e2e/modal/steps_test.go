package modal

import (
	"io"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// TestModalSteps builds an image from steps as Python's SDK sends them, one image a step, and checks in a sandbox what
// they have done. The sandbox runs the image's entrypoint with its command.
//
// mission: B2
func TestModalSteps(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	m := newModalClient(t, h, "steps")
	ctx, stub := plain(h, t)
	u := uploads{t, ctx, stub, m.app.AppID}
	id := u.image(pb.Image_builder{DockerfileCommands: []string{"FROM base"}})
	for _, step := range [][]string{
		{`ENV GREETING='it'"'"'s "here"'`, `ENV PATH='/opt/x:$PATH'`},
		{`WORKDIR '/srv/a b'`},
		{`RUN printf '%s\n' 'two  words' "$GREETING" >out`},
		{`SHELL ["/bin/bash", "-c"]`},
		{`RUN [[ $0 == /bin/bash ]] && echo $0 >shell`},
		{`ENTRYPOINT ["sh", "-c", "pwd; echo "${PATH%%:*}"; exec "$@"", "-"]`},
		{`CMD ["cat", "out", "shell"]`},
	} {
		base := pb.BaseImage_builder{DockerTag: "base", ImageId: id}.Build()
		id = u.image(pb.Image_builder{BaseImages: []*pb.BaseImage{base},
			DockerfileCommands: append([]string{"FROM base"}, step...)})
	}
	img, err := m.sdk.Images.FromID(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := m.sdk.Sandboxes.Create(t.Context(), m.app, img, nil)
	if err != nil {
		t.Fatal(err)
	}
	ending(t, sb)
	out, err := io.ReadAll(sb.Stdout)
	const want = "/srv/a b\n/opt/x\ntwo  words\nit's \"here\"\n/bin/bash\n"
	if err != nil || string(out) != want {
		t.Errorf("the command prints %q, %v; want %q", out, err, want)
	}
	if code, err := sb.Wait(t.Context(), nil); err != nil || code != 0 {
		t.Errorf("it ends with %d, %v", code, err)
	}
}
