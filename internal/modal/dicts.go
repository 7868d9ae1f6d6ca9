package modal

import (
	"context"
	"crypto/rand"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/store/dicts"
)

// repeatable is the largest popped value, in bytes, that is kept to answer a repeated request.
const repeatable = 64 << 10

// dictionaries returns the Dicts. Unsupported if the server has no store for them.
func (s *Server) dictionaries() (*dicts.Dicts, error) {
	if s.dicts == nil {
		return nil, errors.Newf(errors.Unsupported, "this server has no Dicts")
	}
	return s.dicts, nil
}

// withDict calls do with the Dicts and the caller's account. A missing Dict is reported with its Modal ID.
func withDict[T any](ctx context.Context, s *Server, do func(d *dicts.Dicts, account string) (T, error)) (T, error) {
	d, err := s.dictionaries()
	if err != nil {
		var zero T
		return zero, err
	}
	return do(d, callerOf(ctx).Account)
}

func dictMetadata(d dicts.Dict) *pb.DictMetadata {
	return pb.DictMetadata_builder{Name: d.Name, CreationInfo: creation(d.Created)}.Build()
}

func dictEntries(list []*pb.DictEntry) []dicts.Entry {
	entries := make([]dicts.Entry, len(list))
	for i, e := range list {
		entries[i] = dicts.Entry{Key: e.GetKey(), Value: e.GetValue()}
	}
	return entries
}

// DictGetOrCreate implements ModalClient.
func (c *control) DictGetOrCreate(ctx context.Context,
	req *pb.DictGetOrCreateRequest) (*pb.DictGetOrCreateResponse, error) {
	d := dicts.Dict{Account: callerOf(ctx).Account, Environment: envOr(req.GetEnvironmentName()),
		Name: req.GetDeploymentName(), ID: dictID + looseMark + rand.Text()}
	how := req.GetObjectCreationType()
	if how == pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL {
		d.Name = ""
	} else {
		if err := errors.Join(checkName("Dict", d.Name), checkEnv(req.GetEnvironmentName())); err != nil {
			return nil, err
		}
		d.ID = named(dictID, scoped(d.Environment, d.Name))
	}
	d, err := once1(ctx, c.s, "dict "+d.Environment+"/"+d.Name, func() (dicts.Dict, error) {
		return c.s.makeDict(context.WithoutCancel(ctx), d, how, dictEntries(req.GetData()))
	})
	if err != nil {
		return nil, err
	}
	return pb.DictGetOrCreateResponse_builder{DictId: d.ID, Metadata: dictMetadata(d)}.Build(), nil
}

// makeDict returns the Dict with d's ID, which it creates if how says so.
func (s *Server) makeDict(ctx context.Context, d dicts.Dict, how pb.ObjectCreationType,
	first []dicts.Entry) (dicts.Dict, error) {
	all, err := s.dictionaries()
	if err != nil {
		return d, err
	}
	if how == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS {
		if err := all.Delete(ctx, d.Account, d.ID); err != nil && errors.KindOf(err) != errors.NotFound {
			return d, err
		}
	}
	for { // the Dict may be created or deleted meanwhile
		if how != pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS {
			found, err := all.Get(ctx, d.Account, d.ID)
			if errors.KindOf(err) != errors.NotFound {
				return found, err
			}
			if !creates(how) {
				return d, errors.Newf(errors.NotFound, "Dict '%.80s' not found in environment '%.80s'", d.Name,
					d.Environment)
			}
		}
		made, err := all.Create(ctx, d, first)
		if errors.KindOf(err) != errors.Conflict {
			return made, err
		}
		if how == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS {
			return d, withCode(err, alreadyExists)
		}
	}
}

// DictGetById implements ModalClient.
//
//lint:ignore ST1003 the name is the protocol's
func (c *control) DictGetById(ctx context.Context, req *pb.DictGetByIdRequest) (*pb.DictGetByIdResponse, error) {
	return withDict(ctx, c.s, func(all *dicts.Dicts, account string) (*pb.DictGetByIdResponse, error) {
		d, err := all.Get(ctx, account, req.GetDictId())
		if err != nil {
			return nil, err
		}
		return pb.DictGetByIdResponse_builder{DictId: d.ID, Metadata: dictMetadata(d)}.Build(), nil
	})
}

// DictList implements ModalClient.
func (c *control) DictList(ctx context.Context, req *pb.DictListRequest) (*pb.DictListResponse, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*pb.DictListResponse, error) {
		all, err := d.List(ctx, account)
		if err != nil {
			return nil, err
		}
		env := envOr(req.GetEnvironmentName())
		mine := all[:0:0]
		for _, d := range all {
			if d.Environment == env {
				mine = append(mine, d)
			}
		}
		asked := req.GetPagination()
		var items []*pb.DictListResponse_DictInfo
		for _, d := range page(mine, asked.GetCreatedBefore(), int(asked.GetMaxObjects()),
			func(d dicts.Dict) time.Time { return d.Created }) {
			items = append(items, pb.DictListResponse_DictInfo_builder{Name: d.Name, DictId: d.ID,
				CreatedAt: seconds(d.Created), Metadata: dictMetadata(d)}.Build())
		}
		return pb.DictListResponse_builder{Dicts: items, EnvironmentName: env}.Build(), nil
	})
}

// DictDelete implements ModalClient.
func (c *control) DictDelete(ctx context.Context, req *pb.DictDeleteRequest) (*emptypb.Empty, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*emptypb.Empty, error) {
		return &emptypb.Empty{}, d.Delete(ctx, account, req.GetDictId())
	})
}

// DictHeartbeat implements ModalClient.
func (c *control) DictHeartbeat(ctx context.Context, req *pb.DictHeartbeatRequest) (*emptypb.Empty, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*emptypb.Empty, error) {
		return &emptypb.Empty{}, d.Hear(ctx, account, req.GetDictId())
	})
}

// DictUpdate implements ModalClient.
func (c *control) DictUpdate(ctx context.Context, req *pb.DictUpdateRequest) (*pb.DictUpdateResponse, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*pb.DictUpdateResponse, error) {
		created, err := once1(ctx, c.s, "update "+req.GetDictId(), func() (bool, error) {
			return d.Update(context.WithoutCancel(ctx), account, req.GetDictId(), dictEntries(req.GetUpdates()),
				req.GetIfNotExists())
		})
		return pb.DictUpdateResponse_builder{Created: created}.Build(), err
	})
}

// DictGet implements ModalClient.
func (c *control) DictGet(ctx context.Context, req *pb.DictGetRequest) (*pb.DictGetResponse, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*pb.DictGetResponse, error) {
		value, found, err := d.Value(ctx, account, req.GetDictId(), req.GetKey())
		return pb.DictGetResponse_builder{Found: found, Value: value}.Build(), err
	})
}

// DictContains implements ModalClient.
func (c *control) DictContains(ctx context.Context, req *pb.DictContainsRequest) (*pb.DictContainsResponse, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*pb.DictContainsResponse, error) {
		found, err := d.Contains(ctx, account, req.GetDictId(), req.GetKey())
		return pb.DictContainsResponse_builder{Found: found}.Build(), err
	})
}

// DictPop implements ModalClient. A repeated request is answered with the popped value, unless the value is large.
func (c *control) DictPop(ctx context.Context, req *pb.DictPopRequest) (*pb.DictPopResponse, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*pb.DictPopResponse, error) {
		value, found, err := d.Value(ctx, account, req.GetDictId(), req.GetKey())
		if err != nil {
			return nil, err
		}
		pop := func() (*pb.DictPopResponse, error) {
			value, found, err := d.Pop(context.WithoutCancel(ctx), account, req.GetDictId(), req.GetKey())
			return pb.DictPopResponse_builder{Found: found, Value: value}.Build(), err
		}
		if found && len(value) > repeatable {
			return pop()
		}
		return once1(ctx, c.s, "pop "+req.GetDictId(), pop)
	})
}

// DictLen implements ModalClient.
func (c *control) DictLen(ctx context.Context, req *pb.DictLenRequest) (*pb.DictLenResponse, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*pb.DictLenResponse, error) {
		n, err := d.Len(ctx, account, req.GetDictId())
		return pb.DictLenResponse_builder{Len: int32(n)}.Build(), err
	})
}

// DictClear implements ModalClient.
func (c *control) DictClear(ctx context.Context, req *pb.DictClearRequest) (*emptypb.Empty, error) {
	return withDict(ctx, c.s, func(d *dicts.Dicts, account string) (*emptypb.Empty, error) {
		return &emptypb.Empty{}, d.Clear(ctx, account, req.GetDictId())
	})
}

// DictContents implements ModalClient. Without keys, the entries have values only.
func (c *control) DictContents(req *pb.DictContentsRequest, stream grpc.ServerStreamingServer[pb.DictEntry]) error {
	ctx := stream.Context()
	d, err := c.s.dictionaries()
	if err != nil {
		return err
	}
	return d.Each(ctx, callerOf(ctx).Account, req.GetDictId(), req.GetValues(), func(e dicts.Entry) error {
		if !req.GetKeys() {
			e.Key = nil
		}
		return stream.Send(pb.DictEntry_builder{Key: e.Key, Value: e.Value}.Build())
	})
}

// sweepDicts removes old entries and the Dicts of clients that are gone.
func (s *Server) sweepDicts(ctx context.Context) {
	if s.dicts == nil {
		return
	}
	if err := s.dicts.Expire(ctx); err != nil && ctx.Err() == nil {
		logf.Errorf(ctx, "remove old Dicts: %v", err)
	}
}
