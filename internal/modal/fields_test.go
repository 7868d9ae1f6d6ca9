package modal_test

import (
	"slices"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/modal"
	"github.com/RelevanceAI/harvest/internal/modal/fields"
)

// TestEveryServedRequestIsListed checks that the fields of the request of each served method are decided.
func TestEveryServedRequestIsListed(t *testing.T) {
	t.Parallel()
	control, router := modal.Scopes()
	for _, s := range []struct {
		served map[string]account.Scope
		of     protoreflect.ServiceDescriptor
	}{
		{control, pb.File_modal_proto_api_proto.Services().ByName("ModalClient")},
		{router, pb.File_modal_proto_task_command_router_proto.Services().ByName("TaskCommandRouter")},
	} {
		for i := range s.of.Methods().Len() {
			m := s.of.Methods().Get(i)
			_, ok := s.served[string(m.Name())]
			if ok && m.Input().Fields().Len() > 0 && !slices.Contains(fields.Roots, m.Input().Name()) {
				t.Errorf("%s takes %s, which is in no list; add it to fields.Roots", m.Name(), m.Input().Name())
			}
		}
	}
}
