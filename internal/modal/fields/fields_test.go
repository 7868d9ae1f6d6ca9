package fields_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/fields"
)

// TestEveryFieldIsDecided walks the descriptors of the protocol: each field is served, refused or harmless, in
// exactly one of the lists, and the lists name no field that does not exist. The documentation names the harmless ones.
func TestEveryFieldIsDecided(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/modal.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[protoreflect.Name]bool{}
	var walk func(d protoreflect.MessageDescriptor)
	walk = func(d protoreflect.MessageDescriptor) {
		if seen[d.Name()] {
			return
		}
		seen[d.Name()] = true
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			served, harmless := slices.Contains(served[d.Name()], f.Name()),
				slices.Contains(harmless[d.Name()], f.Name())
			_, refused := fields.Refused[d.Name()][f.Name()]
			lists := 0
			for _, in := range []bool{served, harmless, refused} {
				if in {
					lists++
				}
			}
			if lists != 1 {
				t.Errorf("%s.%s is in %d of the lists", d.Name(), f.Name(), lists)
			}
			if harmless && !strings.Contains(string(docs), "`"+string(f.Name())+"`") {
				t.Errorf("docs/modal.md does not say that %s.%s is ignored", d.Name(), f.Name())
			}
			if served && f.Message() != nil && !f.IsMap() {
				walk(f.Message())
			}
		}
	}
	for _, name := range fields.Roots {
		d := message(name)
		if d == nil {
			t.Fatalf("there is no %s", name)
		}
		walk(d)
	}
	exists := func(name, field protoreflect.Name) {
		if d := message(name); !seen[name] || d != nil && d.Fields().ByName(field) == nil {
			t.Errorf("there is no %s.%s", name, field)
		}
	}
	for message, names := range served {
		for _, name := range names {
			exists(message, name)
		}
	}
	for message, names := range harmless {
		for _, name := range names {
			exists(message, name)
		}
	}
	for message, names := range fields.Refused {
		for name := range names {
			exists(message, name)
		}
	}
}

// message returns a message of one of the services' files.
func message(name protoreflect.Name) protoreflect.MessageDescriptor {
	if d := pb.File_modal_proto_api_proto.Messages().ByName(name); d != nil {
		return d
	}
	return pb.File_modal_proto_task_command_router_proto.Messages().ByName(name)
}

// TestRefusedFields checks that options which restrict are refused, wherever they are, and not the empty ones.
// mission: A6
func TestRefusedFields(t *testing.T) {
	decryption := pb.OutboundPolicy_TLSDecryption_builder{Allowed: true}.Build()
	routes := pb.OutboundPolicy_builder{TlsDecryption: decryption}.Build()
	routed := pb.Sandbox_builder{OutboundPolicy: routes}.Build()
	mounting := pb.Image_builder{VolumeMounts: []*pb.VolumeMount{{}}}.Build()
	for what, m := range map[string]proto.Message{
		"routes":                 pb.SandboxCreateV2Request_builder{Definition: routed}.Build(),
		"a sidecar's":            pb.SandboxContainerCreateV2Request_builder{Definition: routed}.Build(),
		"volumes in build":       pb.ImageGetOrCreateRequest_builder{Image: mounting}.Build(),
		"a restore with volumes": pb.SandboxRestoreRequest_builder{VolumeMounts: []*pb.VolumeMount{{}}}.Build(),
		"a public image":         pb.ImagePublishRequest_builder{AllowPublic: true}.Build(),
		"an environment's role":  pb.EnvironmentCreateRequest_builder{DefaultMemberRoleStr: "viewer"}.Build(),
		"volume options": pb.VolumeGetOrCreateRequest_builder{
			CreateOptions: pb.VolumeCreateOptions_builder{ExperimentalOptions: map[string]string{"x": "y"}}.Build(),
		}.Build(),
	} {
		if err := fields.Check(m); errors.KindOf(err) != errors.Unsupported || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, m := range []proto.Message{
		pb.SandboxCreateV2Request_builder{Definition: pb.Sandbox_builder{OutboundPolicy: &pb.OutboundPolicy{}}.Build()}.Build(), &pb.SandboxCreateRequest{},
	} {
		if err := fields.Check(m); err != nil {
			t.Errorf("%v: %v", m, err)
		}
	}
}
