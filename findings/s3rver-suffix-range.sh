#!/bin/sh
# Version: s3rver 3.7.1 (npm), an S3 server for tests; @aws-sdk/client-s3 3.1175.0 (npm) as the client.
#
# Guess: "Range: bytes=-2" is the last two bytes of an object, as in each HTTP server. Readers of ZIP and Parquet files
# ask so, because their directory is at the end.
#
# Behaviour: the answer is 206 with the first bytes, and one more than asked for: the range is taken for 0 to 2. It is
# consistent, as its Content-Range says "bytes 0-2/5", and there is no error.
#
# Output seen:
#   bytes=1-2: 206 "bytes 1-2/5" "el"
#   bytes=3-: 206 "bytes 3-4/5" "lo"
#   bytes=-2: 206 "bytes 0-2/5" "hel"
#
# It needs npm and node.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-save s3rver@3.7.1 @aws-sdk/client-s3@3.1175.0 >/dev/null 2>&1
cat >main.cjs <<'JS'
const S3rver = require("s3rver");
const {S3} = require("@aws-sdk/client-s3");

(async () => {
	const server = new S3rver({address: "127.0.0.1", port: 0, silent: true, directory: "data"});
	const {port} = await server.run();
	const client = new S3({
		endpoint: `http://127.0.0.1:${port}`, region: "us-east-1", forcePathStyle: true,
		credentials: {accessKeyId: "S3RVER", secretAccessKey: "S3RVER"},
	});
	const object = {Bucket: "bucket", Key: "key"};
	await client.createBucket({Bucket: "bucket"});
	await client.putObject({...object, Body: "hello"});
	for (const Range of ["bytes=1-2", "bytes=3-", "bytes=-2"]) {
		const answer = await client.getObject({...object, Range});
		const text = await answer.Body.transformToString();
		console.log(`${Range}: ${answer.$metadata.httpStatusCode} "${answer.ContentRange}" "${text}"`);
	}
	process.exit(0);
})();
JS
node main.cjs >seen 2>log || { cat log; exit 1; }
cat seen
cat >want <<'WANT'
bytes=1-2: 206 "bytes 1-2/5" "el"
bytes=3-: 206 "bytes 3-4/5" "lo"
bytes=-2: 206 "bytes 0-2/5" "hel"
WANT
cmp seen want
