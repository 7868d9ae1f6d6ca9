#!/bin/sh
set -e
echo "installing shared"
