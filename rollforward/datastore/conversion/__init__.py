"""The conversion of entities between ndb and Datastore: as protobufs, with what ndb would drop."""
